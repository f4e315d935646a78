/* The load of `bench ordinary --apache` on Apache's broker by Apache's own client (remoting): each shape for so many
 * seconds unmeasured, then for as many measured. A line a shape: name, messages, seconds, p50 and p99 in ms (0: none).
 *
 * java -cp JARS ClassicLoad.java NAME_SERVER TOPIC SECONDS MESSAGES
 */
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.UUID;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class ClassicLoad {
    private static final int BODY_BYTES = 128;
    private static final int IN_FLIGHT = 64;
    private static final int LIST = 100;
    private static final byte[] BODY = new byte[BODY_BYTES];
    private static String nameServer;
    private static String topic;
    private static double seconds;
    private static DefaultMQProducer producer;

    /** What a shape gave: messages, and how long each call took that was waited for, in ns. */
    private record Ran(int count, double seconds, long[] costs) { }

    private interface Shape {
        Ran run() throws Exception;
    }

    private interface Call {
        void make() throws Exception;
    }

    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.exit(0);
        } catch (Throwable error) { // Threads of clients would keep the process alive.
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] arguments) throws Exception {
        nameServer = arguments[0];
        topic = arguments[1];
        seconds = Double.parseDouble(arguments[2]);
        int count = Integer.parseInt(arguments[3]);
        for (int i = 0; i < BODY_BYTES; i++) {
            BODY[i] = (byte) i;
        }
        producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(60_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        tell("in flight", () -> inFlight(topic, 0));
        tell("lists, 1 thread", () -> together(1, LIST, ClassicLoad::list));
        tell("lists, 4 threads", () -> together(4, LIST, ClassicLoad::list));
        tell("one at a time", () -> together(1, 1, () -> accepted(producer.send(new Message(topic, BODY)))));
        tell("delayed", () -> inFlight(topic, TimeUnit.HOURS.toMillis(2)));
        fill(topic + "-read", count);
        tell("push, all read", () -> listen(topic + "-read", count, ClassicLoad::readAll));
        tell("push, body read", () -> listen(topic + "-read", count, ClassicLoad::readBody));
    }

    private static void tell(String name, Shape shape) throws Exception {
        shape.run();
        Ran ran = shape.run();
        Arrays.sort(ran.costs);
        System.out.printf(Locale.ROOT, "shape\t%s\t%d\t%f\t%f\t%f%n", name, ran.count, ran.seconds,
            quantile(ran.costs, 0.5), quantile(ran.costs, 0.99));
        System.out.flush();
    }

    private static double quantile(long[] sorted, double part) {
        return sorted.length == 0 ? 0 : sorted[(int) Math.min(sorted.length - 1, part * sorted.length)] / 1e6;
    }

    private static void accepted(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not stored: " + result);
        }
    }

    private static Ran inFlight(String where, long delayMs) throws Exception {
        Semaphore room = new Semaphore(IN_FLIGHT);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                room.release();
            }

            @Override
            public void onException(Throwable error) {
                failure.set(error);
                room.release();
            }
        };
        int count = 0;
        long begun = System.nanoTime();
        while (System.nanoTime() - begun < seconds * 1e9) {
            room.acquire();
            Message message = new Message(where, BODY);
            if (delayMs > 0) {
                message.setDelayTimeMs(delayMs);
            }
            producer.send(message, callback);
            count++;
        }
        room.acquire(IN_FLIGHT);
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        return new Ran(count, (System.nanoTime() - begun) / 1e9, new long[0]);
    }

    private static void list() throws Exception {
        List<Message> messages = new ArrayList<>(LIST);
        for (int i = 0; i < LIST; i++) {
            messages.add(new Message(topic, BODY));
        }
        accepted(producer.send(messages));
    }

    /** Make CALLs from THREADS, of so many MESSAGES each. */
    private static Ran together(int threads, int messages, Call call) throws Exception {
        ConcurrentLinkedQueue<Long> costs = new ConcurrentLinkedQueue<>();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        List<Thread> all = new ArrayList<>();
        long begun = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                try {
                    while (System.nanoTime() - begun < seconds * 1e9) {
                        long one = System.nanoTime();
                        call.make();
                        costs.add(System.nanoTime() - one);
                    }
                } catch (Throwable error) {
                    failure.set(error);
                }
            });
            all.add(thread);
            thread.start();
        }
        for (Thread thread : all) {
            thread.join();
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        double took = (System.nanoTime() - begun) / 1e9;
        return new Ran(costs.size() * messages, took, costs.stream().mapToLong(Long::longValue).toArray());
    }

    private static void fill(String where, int count) throws Exception {
        for (int begin = 0; begin < count; begin += LIST) {
            List<Message> messages = new ArrayList<>(LIST);
            for (int i = begin; i < Math.min(begin + LIST, count); i++) {
                Message message = new Message(where, "paid", "order-" + i, BODY);
                message.putUserProperty("source", "bench");
                messages.add(message);
            }
            accepted(producer.send(messages));
        }
    }

    private interface Reader {
        boolean read(MessageExt message);
    }

    private static Ran listen(String where, int count, Reader reader) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-" + UUID.randomUUID());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(UUID.randomUUID().toString());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(where, "*");
        AtomicInteger read = new AtomicInteger();
        AtomicLong first = new AtomicLong();
        AtomicInteger wrong = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                first.compareAndSet(0, System.nanoTime());
                if (!reader.read(message)) {
                    wrong.incrementAndGet();
                }
                if (read.incrementAndGet() == count) {
                    done.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!done.await(10, TimeUnit.MINUTES) || wrong.get() > 0) {
            throw new IllegalStateException(read.get() + " of " + count + " came, " + wrong.get() + " wrong");
        }
        double took = (System.nanoTime() - first.get()) / 1e9;
        consumer.shutdown();
        return new Ran(count, took, new long[0]);
    }

    private static boolean readAll(MessageExt message) {
        return message.getBody().length == BODY_BYTES && !message.getMsgId().isEmpty()
            && message.getQueueOffset() >= 0 && message.getStoreTimestamp() > 0
            && "paid".equals(message.getTags()) && message.getKeys().equals(message.getProperties().get("KEYS"));
    }

    private static boolean readBody(MessageExt message) {
        return message.getBody().length == BODY_BYTES;
    }
}
