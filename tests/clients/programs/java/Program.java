import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/** Kafka's own Java client behind the common command line of the client programs. */
public final class Program {
    static final ObjectMapper JSON = new ObjectMapper();
    static final long JOIN_TIMEOUT_MS = 60_000;
    static final int PROGRESS_EVERY = 20;

    static final class Unsupported extends Exception {
        private static final long serialVersionUID = 1;

        Unsupported(String why) {
            super(why);
        }
    }

    final String bootstrap;
    final String topic;
    final JsonNode args;

    Program(String bootstrap, String topic, JsonNode args) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.args = args;
    }

    public static void main(String[] words) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int i = 1; i + 1 < words.length; i += 2) {
            options.put(words[i], words[i + 1]);
        }
        String text = options.getOrDefault("--json-args", "{}");
        JsonNode args = JSON.readTree(text.startsWith("@") ? Files.readString(Path.of(text.substring(1))) : text);
        Program program = new Program(options.getOrDefault("--bootstrap", ""), options.getOrDefault("--topic", ""), args);
        Map<String, Object> answer = new HashMap<>();
        try {
            answer.put("result", program.run(words[0]));
        } catch (Unsupported why) {
            answer.put("unsupported", why.getMessage());
        } catch (Throwable error) {
            error.printStackTrace();
            answer.put("error", String.valueOf(error));
        }
        say(answer);
        Runtime.getRuntime().halt(0);
    }

    static synchronized void say(Object message) throws Exception {
        System.out.println(JSON.writeValueAsString(message));
        System.out.flush();
    }

    Object run(String scenario) throws Exception {
        switch (scenario) {
            case "version":
                return Map.of("client", "Java", "version", AppInfoParser.getVersion());
            case "produce":
                return produce(args.get("batches"));
            case "consume":
                return consume();
            case "tail":
                return tail();
            case "rebalance":
                return rebalance();
            case "resume":
                return resume();
            case "admin":
                return AdminSteps.run(bootstrap, args.get("steps"));
            case "soak":
                return soak();
            default:
                throw new Unsupported("no scenario " + scenario);
        }
    }

    static byte[] unpack(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    static String pack(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    String text(String name, String otherwise) {
        return args.hasNonNull(name) ? args.get(name).asText() : otherwise;
    }

    long deadline() {
        return System.currentTimeMillis() + (args.has("timeout_ms") ? args.get("timeout_ms").asLong() : 30_000);
    }

    KafkaProducer<byte[], byte[]> producer(String codec, String acks, boolean idempotent, long lingerMs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.serializer", ByteArraySerializer.class);
        settings.put("value.serializer", ByteArraySerializer.class);
        settings.put("compression.type", codec);
        settings.put("acks", acks);
        settings.put("enable.idempotence", idempotent);
        settings.put("linger.ms", lingerMs);
        settings.put("delivery.timeout.ms", 90_000);
        return new KafkaProducer<>(settings);
    }

    Object produce(JsonNode batches) throws Exception {
        String acks = text("acks", "all");
        long pauseMs = args.has("pause_ms") ? args.get("pause_ms").asLong() : 0;
        List<List<Long>> offsets = new ArrayList<>();
        for (JsonNode batch : batches) {
            String codec = batch.hasNonNull("codec") ? batch.get("codec").asText() : "none";
            boolean idempotent = args.path("idempotent").asBoolean(false);
            try (var producer = producer(codec, acks, idempotent, pauseMs > 0 ? 0 : 20)) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (JsonNode record : batch.get("records")) {
                    sent.add(producer.send(recordOf(record, batch.get("partition").asInt())));
                    Thread.sleep(pauseMs);
                }
                producer.flush();
                for (Future<RecordMetadata> future : sent) {
                    RecordMetadata told = future.get(60, TimeUnit.SECONDS);
                    offsets.add(List.of((long) told.partition(), told.hasOffset() ? told.offset() : -1L));
                }
            }
        }
        return Map.of("offsets", offsets);
    }

    ProducerRecord<byte[], byte[]> recordOf(JsonNode record, int partition) {
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : record.path("headers")) {
            headers.add(new RecordHeader(header.get(0).asText(), unpack(header.get(1))));
        }
        Long timestamp = record.hasNonNull("timestamp") ? record.get("timestamp").asLong() : null;
        return new ProducerRecord<>(
                topic, partition, timestamp, unpack(record.get("key")), unpack(record.get("value")), headers);
    }

    Properties consumerSettings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        settings.put("enable.auto.commit", false);
        return settings;
    }

    List<TopicPartition> partitions(KafkaConsumer<byte[], byte[]> consumer) {
        List<String> topics = new ArrayList<>();
        args.path("topics").forEach(name -> topics.add(name.asText()));
        if (topics.isEmpty()) {
            topics.add(topic);
        }
        List<TopicPartition> found = new ArrayList<>();
        for (String name : topics) {
            consumer.partitionsFor(name).forEach(info -> found.add(new TopicPartition(name, info.partition())));
        }
        return found;
    }

    static Map<String, Object> read(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("topic", record.topic());
        result.put("partition", record.partition());
        result.put("offset", record.offset());
        result.put("timestamp", record.timestamp());
        result.put("key", pack(record.key()));
        result.put("value", pack(record.value()));
        List<List<String>> headers = new ArrayList<>();
        record.headers().forEach(header -> headers.add(Arrays.asList(header.key(), pack(header.value()))));
        result.put("headers", headers);
        return result;
    }

    static Object pollUntil(KafkaConsumer<byte[], byte[]> consumer, int count, long until) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        while (records.size() < count && System.currentTimeMillis() < until) {
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
        }
        records.sort(Comparator.comparing((ConsumerRecord<byte[], byte[]> record) -> record.topic())
                .thenComparing(ConsumerRecord::partition)
                .thenComparing(ConsumerRecord::offset));
        return Map.of("records", records.stream().map(Program::read).toList());
    }

    Object consume() {
        try (var consumer = new KafkaConsumer<byte[], byte[]>(consumerSettings())) {
            List<TopicPartition> partitions = partitions(consumer);
            consumer.assign(partitions);
            if (args.path("start").has("timestamp")) {
                Map<TopicPartition, Long> times = new HashMap<>();
                partitions.forEach(each -> times.put(each, args.get("start").get("timestamp").asLong()));
                for (Map.Entry<TopicPartition, OffsetAndTimestamp> found : consumer.offsetsForTimes(times).entrySet()) {
                    if (found.getValue() == null) {
                        consumer.seekToEnd(List.of(found.getKey()));
                    } else {
                        consumer.seek(found.getKey(), found.getValue().offset());
                    }
                }
            } else {
                consumer.seekToBeginning(partitions);
            }
            return pollUntil(consumer, args.get("count").asInt(), deadline());
        }
    }

    Object tail() throws Exception {
        try (var consumer = new KafkaConsumer<byte[], byte[]>(consumerSettings())) {
            List<TopicPartition> partitions = partitions(consumer);
            consumer.assign(partitions);
            consumer.seekToEnd(partitions);
            partitions.forEach(consumer::position);
            var batch = JSON.createObjectNode().put("partition", 0).set("records", args.get("records"));
            produce(JSON.createArrayNode().add(batch));
            return pollUntil(consumer, args.get("records").size(), deadline());
        }
    }

    Properties groupSettings() {
        Properties settings = consumerSettings();
        settings.put("group.id", args.get("group").asText());
        settings.put("auto.offset.reset", "earliest");
        String protocol = text("protocol", "classic");
        settings.put("group.protocol", protocol);
        if (protocol.equals("classic")) {
            settings.put("session.timeout.ms", 10_000);
            settings.put("heartbeat.interval.ms", 400);
            Map<String, String> assignors = Map.of(
                    "range", "RangeAssignor", "roundrobin", "RoundRobinAssignor",
                    "cooperative-sticky", "CooperativeStickyAssignor");
            settings.put("partition.assignment.strategy",
                    "org.apache.kafka.clients.consumer." + assignors.get(text("assignor", "range")));
        } else if (args.hasNonNull("assignor")) {
            settings.put("group.remote.assignor", args.get("assignor").asText());
        }
        return settings;
    }

    /** Polls in a thread of its own until it is closed. */
    final class Member implements ConsumerRebalanceListener {
        final Set<Integer> owned = new ConcurrentSkipListSet<>();
        final Set<Integer> lost = new ConcurrentSkipListSet<>();
        final AtomicInteger assignments = new AtomicInteger();
        volatile boolean closing;
        final Thread thread;

        Member(String instance, Consumer<byte[]> onRecord) {
            Properties settings = groupSettings();
            settings.put("enable.auto.commit", true);
            settings.put("auto.commit.interval.ms", 500);
            if (instance != null) {
                settings.put("group.instance.id", instance);
            }
            thread = new Thread(() -> {
                try (var consumer = new KafkaConsumer<byte[], byte[]>(settings)) {
                    if (args.hasNonNull("pattern")) {
                        consumer.subscribe(new SubscriptionPattern(args.get("pattern").asText()), this);
                    } else {
                        consumer.subscribe(List.of(topic), this);
                    }
                    while (!closing) {
                        consumer.poll(Duration.ofMillis(100)).forEach(record -> onRecord.accept(record.value()));
                    }
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            partitions.forEach(each -> owned.add(each.partition()));
            if (!partitions.isEmpty()) {
                assignments.incrementAndGet();
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            partitions.forEach(each -> {
                owned.remove(each.partition());
                lost.add(each.partition());
            });
        }

        List<Integer> now() {
            return new ArrayList<>(owned);
        }

        void close() throws Exception {
            closing = true;
            thread.join(30_000);
        }
    }

    static void waitFor(String what, BooleanSupplier condition) throws Exception {
        long until = System.currentTimeMillis() + JOIN_TIMEOUT_MS;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > until) {
                throw new IllegalStateException("waited " + JOIN_TIMEOUT_MS / 1000 + " s for: " + what);
            }
            Thread.sleep(20);
        }
    }

    Object rebalance() throws Exception {
        int count = args.get("partitions").asInt();
        boolean isStatic = args.path("static").asBoolean(false);
        Consumer<byte[]> ignore = value -> { };
        Member first = new Member(isStatic ? "first" : null, ignore);
        waitFor("the first member to own every partition", () -> first.now().size() == count);
        Map<String, Object> result = new TreeMap<>();
        result.put("alone", first.now());
        Member second = new Member(isStatic ? "second" : null, ignore);
        waitFor("two members to share the partitions", () -> {
            List<Integer> one = first.now();
            List<Integer> two = second.now();
            return !one.isEmpty() && !two.isEmpty() && one.size() + two.size() == count
                    && Collections.disjoint(one, two);
        });
        List<List<Integer>> together = new ArrayList<>(List.of(first.now(), second.now()));
        together.sort(Comparator.comparing(list -> list.get(0)));
        result.put("together", together);
        if (isStatic) {
            int before = first.assignments.get();
            List<Integer> owned = second.now();
            second.close();
            Member again = new Member("second", ignore);
            waitFor("the restarted static member to own something", () -> !again.now().isEmpty());
            result.put("same", again.now().equals(owned));
            result.put("disturbed", first.assignments.get() - before);
            again.close();
        } else {
            result.put("lost", first.lost.size());
            second.close();
            waitFor("the first member to own everything again", () -> first.now().size() == count);
            result.put("after", first.now());
        }
        first.close();
        return result;
    }

    Object resume() throws Exception {
        TopicPartition here = new TopicPartition(topic, 0);
        Properties settings = groupSettings();
        settings.put("max.poll.records", 1);
        long until = deadline();
        Map<String, Object> result = new HashMap<>();
        try (var one = new KafkaConsumer<byte[], byte[]>(settings)) {
            one.subscribe(List.of(topic));
            result.put("first", take(one, args.get("first").asInt(), here, until));
        }
        try (var two = new KafkaConsumer<byte[], byte[]>(settings)) {
            two.subscribe(List.of(topic));
            result.put("committed", committed(two, here));
            result.put("second", take(two, args.get("total").asInt() - args.get("first").asInt(), here, until));
            result.put("committed_after", committed(two, here));
        }
        return result;
    }

    static List<Long> take(KafkaConsumer<byte[], byte[]> consumer, int count, TopicPartition here, long until) {
        List<Long> offsets = new ArrayList<>();
        while (offsets.size() < count && System.currentTimeMillis() < until) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                offsets.add(record.offset());
                consumer.commitSync(Map.of(here, new OffsetAndMetadata(record.offset() + 1)));
            }
        }
        return offsets;
    }

    static Long committed(KafkaConsumer<byte[], byte[]> consumer, TopicPartition here) {
        OffsetAndMetadata found = consumer.committed(Set.of(here)).get(here);
        return found == null ? null : found.offset();
    }

    Object soak() throws Exception {
        Set<String> acked = ConcurrentHashMap.newKeySet();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        Map<String, Integer> failed = new ConcurrentHashMap<>();
        int count = args.get("count").asInt();
        int partitions = args.get("partitions").asInt();
        long pauseNanos = (long) (1e9 / args.get("rate_per_s").asDouble());
        Member member = new Member(null, value -> seen.add(new String(value, StandardCharsets.UTF_8)));
        try (var producer = producer("none", "all", true, 5)) {
            for (int number = 0; number < count; number++) {
                String value = String.valueOf(number);
                byte[] data = value.getBytes(StandardCharsets.UTF_8);
                producer.send(new ProducerRecord<>(topic, number % partitions, null, data), (told, error) -> {
                    if (error != null) {
                        failed.merge(String.valueOf(error), 1, Integer::sum);
                        return;
                    }
                    acked.add(value);
                    if (acked.size() % PROGRESS_EVERY == 0) {
                        try {
                            say(Map.of("progress", acked.size()));
                        } catch (Exception impossible) {
                            throw new IllegalStateException(impossible);
                        }
                    }
                });
                TimeUnit.NANOSECONDS.sleep(pauseNanos);
            }
            producer.flush();
        }
        long until = deadline();
        while (!seen.containsAll(acked) && System.currentTimeMillis() < until) {
            Thread.sleep(50);
        }
        Set<String> missing = new HashSet<>(acked);
        missing.removeAll(seen);
        if (missing.isEmpty()) {
            member.close();
        }
        return Map.of("acked", acked.size(), "failed", failed, "missing", missing.size());
    }
}
