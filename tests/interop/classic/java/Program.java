import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.exception.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Scenarios of the classic client. Each prints one line: its name and the result. Arguments: name server, scenarios.
 * CLASSIC_USER and CLASSIC_SECRET sign all requests.
 */
public class Program {
  static String names;
  static final long PATIENCE_S = 60;

  interface Scenario { String run() throws Exception; }

  public static void main(String[] arguments) throws Exception {
    names = arguments[0];
    Map<String, Scenario> all = new LinkedHashMap<>();
    all.put("sends", Program::sends);
    all.put("push", Program::push);
    all.put("ordered", Program::ordered);
    all.put("transactions", Program::transactions);
    all.put("requests", Program::requests);
    all.put("pull", Program::pull);
    all.put("shared", Program::shared);
    all.put("filters", Program::filters);
    all.put("refused", Program::refused);
    for (String wanted : Arrays.asList(arguments).subList(1, arguments.length)) {
      String result;
      try {
        result = all.get(wanted).run();
      } catch (Throwable error) {
        error.printStackTrace();
        result = "failed: " + error;
      }
      System.out.println(wanted + " " + result.replace('\n', ' '));
    }
    System.exit(0);
  }

  static <P extends DefaultMQProducer> P started(P producer) throws Exception {
    producer.setNamesrvAddr(names);
    producer.setSendMsgTimeout(15000);
    producer.start();
    return producer;
  }

  static DefaultMQPushConsumer consumer(String group, String topic, String expression) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook(), new AllocateMessageQueueAveragely());
    consumer.setNamesrvAddr(names);
    consumer.setInstanceName(group + System.nanoTime());
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.subscribe(topic, expression);
    return consumer;
  }

  /** Return what signs requests; null: they are not signed. */
  static RPCHook hook() {
    String user = System.getenv("CLASSIC_USER");
    return user == null ? null : new AclClientRPCHook(new SessionCredentials(user, System.getenv("CLASSIC_SECRET")));
  }

  static String text(Message message) { return new String(message.getBody()); }

  static void until(Callable<Boolean> holds) throws Exception {
    long end = System.nanoTime() + PATIENCE_S * 1_000_000_000L;
    while (!holds.call()) {
      if (System.nanoTime() > end) throw new TimeoutException("it does not come true");
      Thread.sleep(20);
    }
  }

  static String sends() throws Exception {
    DefaultMQProducer producer = started(new DefaultMQProducer("sends", hook()));
    String first = producer.send(new Message("Sends", "red", "key", "sync".getBytes())).getSendStatus().name();
    CountDownLatch async = new CountDownLatch(100);
    for (int i = 0; i < 100; i++)
      producer.send(new Message("Sends", ("async" + i).getBytes()), new SendCallback() {
        public void onSuccess(SendResult result) { async.countDown(); }
        public void onException(Throwable error) { error.printStackTrace(); }
      });
    if (!async.await(PATIENCE_S, TimeUnit.SECONDS)) throw new TimeoutException("async");
    producer.sendOneway(new Message("Sends", "oneway".getBytes()));
    List<Message> batch = new ArrayList<>();
    for (int i = 0; i < 10; i++) batch.add(new Message("Sends", ("batch" + i).getBytes()));
    producer.send(batch);
    Message late = new Message("Sends", "late".getBytes());
    late.setDelayTimeLevel(1);
    producer.send(late);
    Set<String> seen = ConcurrentHashMap.newKeySet();
    DefaultMQPushConsumer consumer = consumer("sends", "Sends", "*");
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      for (MessageExt one : messages) seen.add(text(one));
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    consumer.start();
    until(() -> seen.size() == 113);
    int found = producer.queryMessage("Sends", "key", 10, 0, System.currentTimeMillis() + 60000).getMessageList().size();
    consumer.shutdown();
    producer.shutdown();
    return first + " " + seen.size() + " found=" + found;
  }

  static String push() throws Exception {
    DefaultMQProducer producer = started(new DefaultMQProducer("push", hook()));
    Map<String, Integer> times = new ConcurrentHashMap<>();
    DefaultMQPushConsumer consumer = consumer("push", "Push", "*");
    consumer.setMaxReconsumeTimes(1);
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      for (MessageExt one : messages) {
        times.merge(text(one), 1, Integer::sum);
        context.setDelayLevelWhenNextConsume(1);
        if (text(one).equals("dies") || one.getReconsumeTimes() == 0 && text(one).equals("fails"))
          return ConsumeConcurrentlyStatus.RECONSUME_LATER;
      }
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    consumer.start();
    for (String body : List.of("fine", "fails", "dies")) producer.send(new Message("Push", body.getBytes()));
    until(() -> times.getOrDefault("fails", 0) == 2 && times.getOrDefault("dies", 0) == 2);
    List<String> dead = new CopyOnWriteArrayList<>();
    DefaultMQPushConsumer letters = consumer("letters", "%DLQ%push", "*");
    letters.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      for (MessageExt one : messages) dead.add(text(one));
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    letters.start();
    until(() -> dead.contains("dies"));
    consumer.shutdown();
    letters.shutdown();
    producer.shutdown();
    return new TreeMap<>(times) + " dead=" + dead;
  }

  static String ordered() throws Exception {
    DefaultMQProducer producer = started(new DefaultMQProducer("ordered", hook()));
    for (int i = 0; i < 100; i++)
      producer.send(new Message("Ordered", ("" + i).getBytes()), (queues, message, key) -> queues.get((int) key % queues.size()), i % 2);
    Map<Integer, List<Integer>> seen = new ConcurrentHashMap<>();
    AtomicInteger count = new AtomicInteger();
    DefaultMQPushConsumer consumer = consumer("ordered", "Ordered", "*");
    consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
      for (MessageExt one : messages) {
        seen.computeIfAbsent(one.getQueueId(), queue -> new CopyOnWriteArrayList<>()).add(Integer.parseInt(text(one)));
        count.incrementAndGet();
      }
      return ConsumeOrderlyStatus.SUCCESS;
    });
    consumer.start();
    until(() -> count.get() >= 100);
    boolean inOrder = seen.values().stream().allMatch(list -> list.equals(new ArrayList<>(new TreeSet<>(list))));
    consumer.shutdown();
    producer.shutdown();
    return count + " in order=" + inOrder;
  }

  static String transactions() throws Exception {
    TransactionMQProducer producer = new TransactionMQProducer("transactions", hook());
    producer.setTransactionListener(new TransactionListener() {
      public LocalTransactionState executeLocalTransaction(Message message, Object decision) { return (LocalTransactionState) decision; }
      public LocalTransactionState checkLocalTransaction(MessageExt message) { return LocalTransactionState.COMMIT_MESSAGE; }
    });
    started(producer);
    producer.sendMessageInTransaction(new Message("Transactions", "committed".getBytes()), LocalTransactionState.COMMIT_MESSAGE);
    producer.sendMessageInTransaction(new Message("Transactions", "rolled back".getBytes()), LocalTransactionState.ROLLBACK_MESSAGE);
    producer.sendMessageInTransaction(new Message("Transactions", "checked".getBytes()), LocalTransactionState.UNKNOW);
    Set<String> seen = ConcurrentHashMap.newKeySet();
    DefaultMQPushConsumer consumer = consumer("transactions", "Transactions", "*");
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      for (MessageExt one : messages) seen.add(text(one));
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    consumer.start();
    until(() -> seen.contains("committed") && seen.contains("checked"));
    consumer.shutdown();
    producer.shutdown();
    return new TreeSet<>(seen).toString();
  }

  static String requests() throws Exception {
    DefaultMQProducer replier = started(new DefaultMQProducer("repliers", hook()));
    DefaultMQPushConsumer consumer = consumer("repliers", "Requests", "*");
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      try {
        for (MessageExt one : messages)
          replier.send(MessageUtil.createReplyMessage(one, ("re: " + text(one)).getBytes()), 3000);
      } catch (Exception error) {
        error.printStackTrace();
      }
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    consumer.start();
    DefaultMQProducer asker = new DefaultMQProducer("askers", hook());
    asker.setInstanceName("askers");
    started(asker);
    Message reply = asker.request(new Message("Requests", "hello".getBytes()), 30000);
    asker.shutdown();
    consumer.shutdown();
    replier.shutdown();
    return text(reply);
  }

  static String pull() throws Exception {
    DefaultMQProducer producer = started(new DefaultMQProducer("pull", hook()));
    for (int i = 0; i < 20; i++) producer.send(new Message("Pull", ("" + i).getBytes()));
    DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("pull", hook());
    consumer.setNamesrvAddr(names);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.subscribe("Pull", "*");
    consumer.start();
    Set<String> seen = new HashSet<>();
    until(() -> { for (MessageExt one : consumer.poll(1000)) seen.add(text(one)); return seen.size() == 20; });
    long first = 0, end = 0;
    for (MessageQueue queue : consumer.fetchMessageQueues("Pull")) {
      first += consumer.offsetForTimestamp(queue, 0L);
      end += consumer.offsetForTimestamp(queue, System.currentTimeMillis() + 60000);
    }
    consumer.commitSync();
    consumer.shutdown();
    producer.shutdown();
    return seen.size() + " first=" + first + " end=" + end;
  }

  static String shared() throws Exception {
    DefaultMQProducer producer = started(new DefaultMQProducer("shared", hook()));
    Map<String, AtomicInteger> seen = new ConcurrentHashMap<>();
    Set<String> bodies = ConcurrentHashMap.newKeySet();
    List<DefaultMQPushConsumer> members = new ArrayList<>();
    for (String name : List.of("a", "b")) {
      DefaultMQPushConsumer member = consumer("shared", "Shared", "*");
      AtomicInteger count = seen.computeIfAbsent(name, key -> new AtomicInteger());
      member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
        for (MessageExt one : messages) { count.incrementAndGet(); bodies.add(text(one)); }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
      });
      member.start();
      members.add(member);
    }
    int sent = 0;
    while (seen.values().stream().anyMatch(count -> count.get() == 0) && sent < 2000) {
      for (int i = 0; i < 20; i++) producer.send(new Message("Shared", ("" + sent++).getBytes()));
      Thread.sleep(100);
    }
    int all = sent;
    until(() -> bodies.size() == all);
    members.remove(0).shutdown();
    for (int i = 0; i < 20; i++) producer.send(new Message("Shared", ("more" + i).getBytes()));
    until(() -> bodies.size() == all + 20);
    members.get(0).shutdown();
    producer.shutdown();
    return "both=" + seen.values().stream().allMatch(count -> count.get() > 0) + " missing=" + (all + 20 - bodies.size());
  }

  static String filters() throws Exception {
    DefaultMQProducer producer = started(new DefaultMQProducer("filters", hook()));
    for (int i = 0; i < 20; i++) {
      Message message = new Message("Filters", i % 2 == 0 ? "even" : "odd", ("" + i).getBytes());
      message.putUserProperty("n", "" + i);
      producer.send(message);
    }
    Set<String> tagged = ConcurrentHashMap.newKeySet(), chosen = ConcurrentHashMap.newKeySet();
    DefaultMQPushConsumer tags = consumer("tags", "Filters", "even");
    tags.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      for (MessageExt one : messages) tagged.add(text(one));
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    DefaultMQPushConsumer sql = consumer("sql", "Other", "*");
    sql.subscribe("Filters", MessageSelector.bySql("n > 14"));
    sql.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      for (MessageExt one : messages) chosen.add(text(one));
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    tags.start();
    sql.start();
    until(() -> tagged.size() >= 10 && chosen.size() >= 5);
    tags.shutdown();
    sql.shutdown();
    producer.shutdown();
    return tagged.size() + " " + new TreeSet<>(chosen);
  }

  /** The code of the answer to a message for TOPIC, or of the answer to a question for its route. */
  static int code(DefaultMQProducer producer, String topic) throws Exception {
    try {
      producer.send(new Message(topic, "key", "refused?".getBytes()));
      return 0;
    } catch (MQBrokerException error) {
      return error.getResponseCode();
    } catch (MQClientException error) {
      if (error.getCause() instanceof MQBrokerException) return error.getResponseCode();
      try {
        producer.fetchPublishMessageQueues(topic);
      } catch (MQClientException route) {
        if (route.getCause() instanceof MQClientException) return ((MQClientException) route.getCause()).getResponseCode();
      }
      throw error;
    }
  }

  static String refused() throws Exception {
    DefaultMQProducer producer = started(new DefaultMQProducer("refused", hook()));
    producer.setRetryTimesWhenSendFailed(0);
    int allowed = code(producer, "Refused"), readable = code(producer, "Readable"), secret = code(producer, "Secret");
    if (allowed == 0) producer.sendOneway(new Message("Readable", "oneway".getBytes()));
    producer.shutdown();
    return allowed + " " + readable + " " + secret;
  }
}
