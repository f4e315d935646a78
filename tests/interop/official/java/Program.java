import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.shaded.com.google.gson.Gson;
import org.apache.rocketmq.shaded.com.google.gson.GsonBuilder;
import org.apache.rocketmq.shaded.com.google.gson.annotations.SerializedName;

/**
 * The official Java client of Apache RocketMQ, driven by JSON lines: commands on standard input, replies and events on
 * standard output. driver.py, one folder up, says what they are.
 */
public final class Program {
    /** The fields of all commands, by their names in JSON. */
    private static final class Command {
        @SerializedName("do")
        String what;
        int id, count, number, size, batch, threads, in_flight, failures, attempts;
        String name, client, group, topic, filter, expression, body, tag, handle, transaction, message_group;
        String[] topics, keys;
        boolean transactions;
        double await_s, invisible_s, seconds, request_timeout_s;
        long deliver_at_ms;
        Integer priority;
        Map<String, String> properties;
    }

    private static final Gson JSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, AutoCloseable> CLIENTS = new ConcurrentHashMap<>();
    /** By number: messages that can be acknowledged. */
    private static final Map<Integer, MessageView> RECEIVED = new ConcurrentHashMap<>();
    private static final AtomicInteger NUMBERS = new AtomicInteger();
    private static ClientConfiguration configuration;

    public static void main(String[] arguments) {
        configuration = onEndpoints(arguments[0]).build();
        ExecutorService workers = Executors.newCachedThreadPool();
        Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8);
        while (lines.hasNextLine()) {
            Command command = JSON.fromJson(lines.nextLine(), Command.class);
            workers.submit(() -> run(command));
        }
        System.exit(0);
    }

    private static void run(Command c) {
        try {
            say(object("id", c.id, "reply", done(c)));
        } catch (Throwable error) { // Whatever the client raises is what is asked for.
            StringBuilder text = new StringBuilder();
            for (Throwable one = error; one != null; one = one.getCause()) {
                text.append(one.getMessage()).append('\n');
            }
            Matcher code = CODE.matcher(text);
            say(object("id", c.id, "error", object("type", error.getClass().getSimpleName(),
                "code", code.find() ? Integer.valueOf(code.group(1)) : null, "text", text.toString())));
        }
    }

    private static Map<String, Object> done(Command c) throws Exception {
        switch (c.what) {
            case "producer": return producer(c);
            case "simple": return simple(c);
            case "push": return push(c);
            case "send": return send(c);
            case "recall": return recall(c);
            case "receive": return receive(c);
            case "ack": consumerOf(c).ack(RECEIVED.get(c.number)); return object();
            case "change":
                consumerOf(c).changeInvisibleDuration(RECEIVED.get(c.number), seconds(c.invisible_s));
                return object();
            case "close": CLIENTS.remove(c.client).close(); return object();
            case "storm": return storm(c);
            case "drain": return drain(c);
            case "press": return press(c);
            default: throw new IllegalArgumentException(c.what);
        }
    }

    private static ClientConfigurationBuilder onEndpoints(String endpoints) {
        var tls = !"false".equals(System.getenv("rocketmq.client.enableSsl"));
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(endpoints).enableSsl(tls);
        String user = System.getenv("OFFICIAL_USER");
        if (user != null) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(user, System.getenv("OFFICIAL_SECRET")));
        }
        return builder;
    }

    private static Map<String, Object> producer(Command c) throws Exception {
        var settings = configuration;
        if (c.request_timeout_s > 0) {
            settings = onEndpoints(configuration.getEndpoints())
                .setRequestTimeout(seconds(c.request_timeout_s)).build();
        }
        var builder = PROVIDER.newProducerBuilder().setClientConfiguration(settings).setTopics(c.topics);
        if (c.attempts > 0) {
            builder.setMaxAttempts(c.attempts);
        }
        if (c.transactions) { // The checker answers as the message's own property says.
            builder.setTransactionChecker(message -> {
                say(object("event", "check", "client", c.name, "message", described(message)));
                boolean commit = "commit".equals(message.getProperties().get("check"));
                return commit ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
            });
        }
        CLIENTS.put(c.name, builder.build());
        return object();
    }

    private static Map<String, Object> simple(Command c) throws Exception {
        CLIENTS.put(c.name, PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(c.group).setAwaitDuration(seconds(c.await_s))
            .setSubscriptionExpressions(subscriptions(c)).build());
        return object();
    }

    private static Map<String, Object> push(Command c) throws Exception {
        CLIENTS.put(c.name, PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(c.group).setSubscriptionExpressions(subscriptions(c))
            .setMessageListener(message -> { // Fails the first attempts of every message.
                say(object("event", "message", "client", c.name, "message", described(message)));
                return message.getDeliveryAttempt() <= c.failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build());
        return object();
    }

    private static Map<String, Object> send(Command c) throws Exception {
        Producer client = producerOf(c);
        SendReceipt receipt;
        if (c.transaction == null) {
            receipt = client.send(messageOf(c));
        } else {
            Transaction transaction = client.beginTransaction();
            receipt = client.send(messageOf(c), transaction);
            if (c.transaction.equals("commit")) {
                transaction.commit();
            } else if (c.transaction.equals("rollback")) {
                transaction.rollback();
            }
        }
        return object("message_id", receipt.getMessageId().toString(), "recall_handle", receipt.getRecallHandle());
    }

    private static Map<String, Object> recall(Command c) throws Exception {
        return object("message_id", producerOf(c).recallMessage(c.topic, c.handle).getMessageId().toString());
    }

    private static Map<String, Object> receive(Command c) throws Exception {
        List<Object> found = new ArrayList<>();
        for (MessageView message : consumerOf(c).receive(c.count, seconds(c.invisible_s))) {
            found.add(described(message));
        }
        return object("messages", found);
    }

    /** Send COUNT messages, IN_FLIGHT at a time; say how long each took. */
    private static Map<String, Object> storm(Command c) throws Exception {
        Producer client = producerOf(c);
        double[] costs = new double[c.count];
        AtomicInteger next = new AtomicInteger();
        double seconds = together(c.in_flight, () -> {
            for (int i = next.getAndIncrement(); i < c.count; i = next.getAndIncrement()) {
                long one = System.nanoTime();
                client.send(messageOf(c));
                costs[i] = (System.nanoTime() - one) / 1000.0;
            }
            return null;
        });
        Arrays.sort(costs);
        return object("seconds", seconds, "costs_us", costs);
    }

    /** Receive and acknowledge, one after the other on each of THREADS, until COUNT are done. */
    private static Map<String, Object> drain(Command c) throws Exception {
        SimpleConsumer client = consumerOf(c);
        AtomicInteger done = new AtomicInteger();
        return object("seconds", together(c.threads, () -> {
            while (done.get() < c.count) {
                for (MessageView message : client.receive(c.batch, Duration.ofMinutes(1))) {
                    client.ack(message);
                    done.incrementAndGet();
                }
            }
            return null;
        }));
    }

    /** Send from THREADS for so many SECONDS; say how many got through, and why how many did not. */
    private static Map<String, Object> press(Command c) throws Exception {
        Producer client = producerOf(c);
        AtomicInteger sent = new AtomicInteger();
        Map<String, Integer> failures = new ConcurrentHashMap<>();
        long end = System.nanoTime() + (long) (c.seconds * 1e9);
        together(c.threads, () -> {
            while (System.nanoTime() < end) {
                try {
                    client.send(messageOf(c));
                    sent.incrementAndGet();
                } catch (Exception error) {
                    Throwable cause = error;
                    while (cause.getCause() != null) {
                        cause = cause.getCause();
                    }
                    String text = cause.getClass().getSimpleName() + ": " + cause.getMessage();
                    failures.merge(text.replaceAll("\\d+", "#"), 1, Integer::sum);
                }
            }
            return null;
        });
        return object("sent", sent.get(), "failures", failures);
    }

    private static double together(int threads, Callable<Void> work) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        long begun = System.nanoTime();
        List<Future<Void>> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            all.add(pool.submit(work));
        }
        for (Future<Void> one : all) {
            one.get();
        }
        pool.shutdown();
        return (System.nanoTime() - begun) / 1e9;
    }

    private static Producer producerOf(Command c) {
        return (Producer) CLIENTS.get(c.client);
    }

    private static SimpleConsumer consumerOf(Command c) {
        return (SimpleConsumer) CLIENTS.get(c.client);
    }

    private static Map<String, FilterExpression> subscriptions(Command c) {
        var type = "sql".equals(c.filter) ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Map.of(c.topic, new FilterExpression(c.expression == null ? "*" : c.expression, type));
    }

    private static Duration seconds(double s) {
        return Duration.ofMillis(Math.round(s * 1000));
    }

    private static Message messageOf(Command c) {
        byte[] text = c.body.getBytes(StandardCharsets.UTF_8);
        byte[] body = new byte[c.size == 0 ? text.length : c.size];
        for (int i = 0; i < body.length; i++) {
            body[i] = text[i % text.length];
        }
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(c.topic).setBody(body);
        if (c.tag != null) {
            builder.setTag(c.tag);
        }
        if (c.keys != null) {
            builder.setKeys(c.keys);
        }
        if (c.properties != null) {
            c.properties.forEach(builder::addProperty);
        }
        if (c.message_group != null) {
            builder.setMessageGroup(c.message_group);
        }
        if (c.deliver_at_ms > 0) {
            builder.setDeliveryTimestamp(c.deliver_at_ms);
        }
        if (c.priority != null) {
            builder.setPriority(c.priority);
        }
        return builder.build();
    }

    private static Map<String, Object> described(MessageView message) {
        int number = NUMBERS.incrementAndGet();
        RECEIVED.put(number, message);
        ByteBuffer view = message.getBody();
        byte[] body = new byte[view.remaining()];
        view.get(body);
        return object("number", number, "id", message.getMessageId().toString(), "topic", message.getTopic(),
            "size", body.length, "md5", md5(body),
            "body", new String(body, 0, Math.min(64, body.length), StandardCharsets.UTF_8),
            "tag", message.getTag().orElse(null), "keys", new TreeSet<>(message.getKeys()),
            "properties", message.getProperties(), "group", message.getMessageGroup().orElse(null),
            "attempt", message.getDeliveryAttempt());
    }

    private static String md5(byte[] body) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("MD5").digest(body));
        } catch (NoSuchAlgorithmException impossible) {
            throw new AssertionError(impossible);
        }
    }

    private static Map<String, Object> object(Object... pairs) {
        Map<String, Object> found = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            found.put((String) pairs[i], pairs[i + 1]);
        }
        return found;
    }

    private static synchronized void say(Map<String, Object> line) {
        System.out.println(JSON.toJson(line));
        System.out.flush();
    }
}
