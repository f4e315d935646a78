// How apache_5_5.jsonl was made: jshell --class-path "<the jars of rocketmq-client 5.5.0>/*" -s apache_5_5.jsh > apache_5_5.jsonl
import java.util.*;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.*;
import org.apache.rocketmq.common.message.MessageQueue;

String room(String name) { return name.contains("@") ? name.substring(0, name.indexOf("@")) : ""; }

String quoted(Collection<?> items) {
    StringJoiner joined = new StringJoiner(", ", "[", "]");
    for (Object item : items) joined.add("\"" + item + "\"");
    return joined.toString();
}

AllocateMachineRoomNearby nearby(AllocateMessageQueueStrategy inner) {
    return new AllocateMachineRoomNearby(inner, new AllocateMachineRoomNearby.MachineRoomResolver() {
        public String brokerDeployIn(MessageQueue queue) { return room(queue.getBrokerName()); }
        public String consumerDeployIn(String client) { return room(client); }
    });
}

void print(AllocateMessageQueueStrategy strategy, String name, List<MessageQueue> queues, List<String> clients) {
    StringJoiner shares = new StringJoiner(", ", "{", "}");
    for (String client : clients) {
        List<String> share = new ArrayList<>();
        for (MessageQueue queue : strategy.allocate("g", client, queues, clients))
            share.add(queue.getBrokerName() + ":" + queue.getQueueId());
        shares.add("\"" + client + "\": " + quoted(share));
    }
    List<String> names = new ArrayList<>();
    for (MessageQueue queue : queues) names.add(queue.getBrokerName() + ":" + queue.getQueueId());
    System.out.println("{\"strategy\": \"" + name + "\", \"topic\": \"" + queues.get(0).getTopic() + "\", \"queues\": "
        + quoted(names) + ", \"shares\": " + shares + "}");
}

Random random = new Random(20250901);
for (int shape = 0; shape < 12; shape++) {
    String topic = "topic-" + shape;
    List<MessageQueue> queues = new ArrayList<>();
    int brokers = 1 + random.nextInt(4);
    for (int broker = 0; broker < brokers; broker++)
        for (int queue = 0, count = 1 + random.nextInt(12); queue < count; queue++)
            queues.add(new MessageQueue(topic, "room" + broker % 3 + "@broker-" + broker, queue));
    List<String> clients = new ArrayList<>();
    for (int client = 0, count = 1 + random.nextInt(7); client < count; client++)
        clients.add("room" + random.nextInt(3) + "@10.0.0." + random.nextInt(200) + "@" + (1000 + client));
    Collections.sort(queues);
    Collections.sort(clients);
    print(new AllocateMessageQueueAveragely(), "average", queues, clients);
    print(new AllocateMessageQueueAveragelyByCircle(), "average-by-circle", queues, clients);
    print(new AllocateMessageQueueConsistentHash(), "consistent-hash", queues, clients);
    AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
    byRoom.setConsumeridcs(new HashSet<>(Arrays.asList("room0", "room2")));
    print(byRoom, "machine-room", queues, clients);
    print(nearby(new AllocateMessageQueueAveragely()), "machine-room-nearby", queues, clients);
    print(nearby(new AllocateMessageQueueConsistentHash()), "machine-room-nearby-consistent-hash", queues, clients);
}
/exit
