// The official Node.js client of Apache RocketMQ, driven by JSON lines: commands on standard input, replies and events on
// standard output. driver.py, one folder up, says what they are.

const { createHash } = require('node:crypto');
const { createInterface } = require('node:readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const endpoints = process.argv[2];
const { OFFICIAL_USER: accessKey, OFFICIAL_SECRET: accessSecret } = process.env;
const sessionCredentials = accessKey ? { accessKey, accessSecret } : undefined;
const clients = new Map();
const received = new Map(); // by number: messages that can be acknowledged
const logger = { debug() {}, info() {}, warn: console.error, error: console.error };

const say = line => process.stdout.write(JSON.stringify(line) + '\n');

function described(message) {
  const number = received.size + 1;
  received.set(number, message);
  return {
    number,
    id: message.messageId,
    topic: message.topic,
    size: message.body.length,
    md5: createHash('md5').update(message.body).digest('hex'),
    body: message.body.subarray(0, 64).toString(),
    tag: message.tag ?? null,
    keys: [...message.keys].sort(),
    properties: Object.fromEntries(message.properties),
    group: message.messageGroup ?? null,
    attempt: message.deliveryAttempt,
  };
}

const subscriptions = command => new Map([[command.topic,
  new FilterExpression(command.expression ?? '*', command.filter === 'sql' ? FilterType.SQL : FilterType.TAG)]]);

async function started(name, client) {
  await client.startup();
  clients.set(name, client);
  return {};
}

const repeated = (text, size) => Buffer.alloc(size ?? Buffer.byteLength(text), text);

function messageOf(command) {
  return {
    topic: command.topic,
    body: repeated(command.body, command.size),
    tag: command.tag,
    keys: command.keys,
    properties: new Map(Object.entries(command.properties ?? {})),
    messageGroup: command.message_group,
    deliveryTimestamp: command.deliver_at_ms && new Date(command.deliver_at_ms),
    priority: command.priority,
  };
}

const commands = {
  producer({ name, topics, transactions }) {
    // Answers as the message's own property says.
    const check = async message => {
      say({ event: 'check', client: name, message: described(message) });
      const commit = message.properties.get('check') === 'commit';
      return commit ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    };
    const checker = transactions ? { check } : undefined;
    return started(name, new Producer({ endpoints, namespace: '', sessionCredentials, topics, logger, checker }));
  },

  simple(command) {
    return started(command.name, new SimpleConsumer({
      endpoints, namespace: '', sessionCredentials, logger, consumerGroup: command.group,
      subscriptions: subscriptions(command), awaitDuration: command.await_s * 1000,
    }));
  },

  push(command) {
    // Fails the first attempts of every message.
    const consume = async message => {
      say({ event: 'message', client: command.name, message: described(message) });
      return message.deliveryAttempt <= (command.failures ?? 0) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    };
    return started(command.name, new PushConsumer({
      endpoints, namespace: '', sessionCredentials, logger, consumerGroup: command.group,
      subscriptions: subscriptions(command), messageListener: { consume },
    }));
  },

  async send(command) {
    const client = clients.get(command.client);
    const transaction = command.transaction && client.beginTransaction();
    const receipt = await client.send(messageOf(command), transaction);
    if (command.transaction === 'commit') await transaction.commit();
    if (command.transaction === 'rollback') await transaction.rollback();
    return { message_id: receipt.messageId, recall_handle: receipt.recallHandle };
  },

  async recall({ client, topic, handle }) {
    return { message_id: (await clients.get(client).recallMessage(topic, handle)).messageId };
  },

  async receive({ client, count, invisible_s }) {
    const messages = await clients.get(client).receive(count, invisible_s * 1000);
    return { messages: messages.map(described) };
  },

  async ack({ client, number }) {
    await clients.get(client).ack(received.get(number));
    return {};
  },

  async change({ client, number, invisible_s }) {
    await clients.get(client).changeInvisibleDuration(received.get(number), invisible_s * 1000);
    return {};
  },

  async close({ client }) {
    await clients.get(client).shutdown();
    clients.delete(client);
    return {};
  },

  // Send COUNT messages, IN_FLIGHT at a time; say how long each took.
  async storm(command) {
    const client = clients.get(command.client);
    const costs = [];
    let left = command.count;
    const begun = performance.now();
    await Promise.all(Array.from({ length: command.in_flight }, async () => {
      while (left-- > 0) {
        const one = performance.now();
        await client.send(messageOf(command));
        costs.push((performance.now() - one) * 1000);
      }
    }));
    return { seconds: (performance.now() - begun) / 1000, costs_us: costs.sort((a, b) => a - b) };
  },

  // Receive and acknowledge, one after the other in each of THREADS, until COUNT are done.
  async drain({ client, count, batch, threads }) {
    const consumer = clients.get(client);
    const begun = performance.now();
    await Promise.all(Array.from({ length: threads }, async () => {
      while (count > 0) {
        for (const message of await consumer.receive(batch, 60_000)) {
          await consumer.ack(message);
          count--;
        }
      }
    }));
    return { seconds: (performance.now() - begun) / 1000 };
  },
};

createInterface({ input: process.stdin }).on('line', async line => {
  const command = JSON.parse(line);
  try {
    say({ id: command.id, reply: await commands[command.do](command) });
  } catch (error) {
    const code = Number.isInteger(error.code) ? error.code : null;
    say({ id: command.id, error: { type: error.constructor.name, code, text: String(error.message) } });
  }
}).on('close', () => process.exit(0));
