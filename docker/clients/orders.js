// Send an order and receive one, with Apache RocketMQ's own client for Node.js: `node orders.js 127.0.0.1:8081`.
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

// By default the client logs to a file that its first shutdown closes.
const logger = { debug() {}, info() {}, warn: console.error, error: console.error };

async function main() {
  const endpoints = process.argv[2];
  const producer = new Producer({ endpoints, logger, topics: ['orders'] });
  await producer.startup();
  const receipt = await producer.send({ topic: 'orders', body: Buffer.from('an order, from Node.js') });
  console.log('sent', receipt.messageId);
  await producer.shutdown();

  const consumer = new SimpleConsumer({
    endpoints,
    logger,
    consumerGroup: 'billing',
    subscriptions: new Map([['orders', '*']]),
    awaitDuration: 15000,
  });
  await consumer.startup();
  let received = [];
  while (received.length === 0) received = await consumer.receive(1, 15000);
  for (const message of received) {
    console.log('received', message.body.toString());
    await consumer.ack(message);
  }
  await consumer.shutdown();
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
