/* The load of `bench ordinary --apache` by Apache's official client of the 5.x protocol, on Apache's broker or on ours:
 * each shape for so many seconds unmeasured, then for as many measured. A line a shape, as in ClassicLoad.java.
 *
 * java -cp JARS OfficialLoad.java ENDPOINTS TOPIC SECONDS GROUP
 */
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

public class OfficialLoad {
    private static final int IN_FLIGHT = 64;
    private static final int BATCH = 32;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final AtomicInteger LEFT = new AtomicInteger();
    private static String topic;
    private static double seconds;
    private static Producer producer;
    private static SimpleConsumer consumer;

    private record Ran(int count, double seconds, long[] costs) { }

    private interface Shape {
        Ran run() throws Exception;
    }

    private interface Call {
        /** Return how many messages it was; less than none ends the thread. */
        int make() throws Exception;
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
        topic = arguments[1];
        seconds = Double.parseDouble(arguments[2]);
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .enableSsl(false).setRequestTimeout(Duration.ofSeconds(60)).build();
        producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
        tell("official, 64 threads", () -> together(IN_FLIGHT, OfficialLoad::sent));
        tell("official, async 64", () -> inFlight(seconds));
        tell("official, one at a time", () -> together(1, OfficialLoad::sent));
        consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(arguments[3]).setAwaitDuration(Duration.ofSeconds(2))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
        for (int threads : new int[] {1, 8}) {
            inFlight(3 * seconds); // More than is read in two of them.
            String name = threads == 1 ? "1 thread" : threads + " threads";
            tell("official, receive and 32 acks, " + name, () -> together(threads, OfficialLoad::received));
        }
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

    private static Message message() {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(new byte[128]).build();
    }

    private static int sent() throws Exception {
        producer.send(message());
        LEFT.incrementAndGet();
        return 1;
    }

    /** Receive up to 32 and acknowledge them all at once; -1 when all that was sent has been taken. */
    private static int received() throws Exception {
        if (LEFT.addAndGet(-BATCH) < 0) {
            LEFT.addAndGet(BATCH);
            return -1;
        }
        List<MessageView> messages = consumer.receive(BATCH, Duration.ofMinutes(5));
        LEFT.addAndGet(BATCH - messages.size());
        List<CompletableFuture<Void>> all = new ArrayList<>();
        for (MessageView one : messages) {
            all.add(consumer.ackAsync(one));
        }
        for (CompletableFuture<Void> one : all) {
            one.get();
        }
        return messages.size();
    }

    private static Ran inFlight(double seconds) throws Exception {
        Semaphore room = new Semaphore(IN_FLIGHT);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        int count = 0;
        long begun = System.nanoTime();
        while (System.nanoTime() - begun < seconds * 1e9) {
            room.acquire();
            producer.sendAsync(message()).whenComplete((receipt, error) -> {
                if (error != null) {
                    failure.set(error);
                }
                room.release();
            });
            count++;
        }
        room.acquire(IN_FLIGHT);
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        LEFT.addAndGet(count);
        return new Ran(count, (System.nanoTime() - begun) / 1e9, new long[0]);
    }

    private static Ran together(int threads, Call call) throws Exception {
        ConcurrentLinkedQueue<Long> costs = new ConcurrentLinkedQueue<>();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        AtomicInteger count = new AtomicInteger();
        List<Thread> all = new ArrayList<>();
        long begun = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                try {
                    int made = 1;
                    while (made >= 0 && System.nanoTime() - begun < seconds * 1e9) {
                        long one = System.nanoTime();
                        made = call.make();
                        count.addAndGet(Math.max(made, 0));
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
        return new Ran(count.get(), took, costs.stream().mapToLong(Long::longValue).toArray());
    }
}
