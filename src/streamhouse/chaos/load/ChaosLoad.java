// Apache Kafka's own client in a chaos run: `java -cp JARS ChaosLoad.java SPEC.properties`.
//
// Does what librdkafka.py and librdkafka_groups.py do, with the same record values and the same history lines; records.py
// and history.py describe both. Ends in order when stdin ends or says "stop"; "drain" sends groups to the end of the log.

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.FileReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class ChaosLoad {
    static final int MAX_OUTSTANDING = 600;
    static volatile boolean stop, drain, broken;
    static Properties spec = new Properties();
    static List<TopicPartition> places = new ArrayList<>();
    static byte[] block = new byte[1 << 18];
    static History history;

    public static void main(String[] arguments) throws Exception {
        try (FileReader file = new FileReader(arguments[0])) {
            spec.load(file);
        }
        for (String topic : spec.getProperty("topics").split(",")) {
            String[] parts = topic.split(":");
            for (int p = 0; p < Integer.parseInt(parts[1]); p++) places.add(new TopicPartition(parts[0], p));
        }
        new Random(11).nextBytes(block);
        history = new History(Path.of(spec.getProperty("history")), spec.getProperty("process"));
        Thread orders = new Thread(ChaosLoad::listen);
        orders.setDaemon(true);
        orders.start();
        List<Thread> threads = spec.getProperty("role").equals("producers") ? producers() : members();
        for (Thread thread : threads) thread.start();
        for (Thread thread : threads) thread.join();
        history.close();
        System.exit(broken ? 1 : 0);
    }

    static void listen() {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                if (!line.trim().equals("drain")) break;
                drain = true;
            }
        } catch (IOException error) {
            System.err.println("stdin: " + error);
        }
        stop = true;
    }

    static double settleSeconds() {
        return Double.parseDouble(spec.getProperty("settle_s"));
    }

    static long seed(int number) {
        return Long.parseLong(spec.getProperty("seed")) * 1000 + number;
    }

    static Thread guarded(String name, Body body) {
        return new Thread(() -> {
            try {
                body.run();
            } catch (Throwable error) {
                broken = true;
                System.err.println(name + " broke: " + error);
            }
        }, name);
    }

    interface Body {
        void run() throws Exception;
    }

    // Producers.

    static List<Thread> producers() {
        String[] kinds = {"idempotent", "idempotent", "never-twice", "acks-one"};
        List<Thread> threads = new ArrayList<>();
        for (int slot = 0; slot < kinds.length; slot++) {
            int number = slot;
            threads.add(guarded("java-" + slot, () -> new Slot(number, kinds[number], kinds.length).live()));
        }
        return threads;
    }

    static class Slot {
        final int number;
        final String kind;
        final double rate;
        final Random random;

        Slot(int number, String kind, int slots) {
            this.number = number;
            this.kind = kind;
            this.rate = Double.parseDouble(spec.getProperty("rate")) / slots;
            this.random = new Random(seed(400 + number));
        }

        void live() throws Exception {
            for (int life = 0; !stop; life++) one(spec.getProperty("process") + "-" + number + "-" + life);
        }

        void one(String name) throws Exception {
            boolean idempotent = kind.equals("idempotent"), acksOne = kind.equals("acks-one");
            history.line("producers", name + " java " + (idempotent ? "1 1 all" : acksOne ? "0 0 1" : "1 0 all"));
            Properties config = new Properties();
            config.put("bootstrap.servers", spec.getProperty("bootstrap"));
            config.put("client.id", name);
            config.put("acks", acksOne ? "1" : "all");
            config.put("enable.idempotence", idempotent);
            if (kind.equals("never-twice")) config.put("retries", 0);
            config.put("max.in.flight.requests.per.connection", 5);
            config.put("linger.ms", 0);
            config.put("batch.size", List.of(600, 4000, 16384).get(random.nextInt(3)));
            config.put("compression.type", List.of("none", "none", "lz4", "zstd", "gzip").get(random.nextInt(5)));
            config.put("request.timeout.ms", 10000);
            config.put("delivery.timeout.ms", 120000);
            config.put("max.block.ms", 60000);
            config.put("reconnect.backoff.max.ms", 500);
            config.put("max.request.size", 2000000);
            config.put("key.serializer", ByteArraySerializer.class.getName());
            config.put("value.serializer", ByteArraySerializer.class.getName());
            Map<TopicPartition, Integer> next = new HashMap<>();
            Set<String> open = ConcurrentHashMap.newKeySet();
            boolean[] failed = {false};
            int bursts = random.nextBoolean() ? 1 + random.nextInt(3) : 4 + random.nextInt(22);
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config)) {
                for (int burst = 0; burst < bursts && !stop && !failed[0]; burst++) {
                    boolean large = random.nextInt(100) < 12;
                    int count = large ? 1 + random.nextInt(3) : burst == 0 ? 10 + random.nextInt(40) : 1 + random.nextInt(12);
                    int padding = large ? 50000 + random.nextInt(150000) : random.nextInt(400);
                    List<TopicPartition> chosen = new ArrayList<>(places);
                    Collections.shuffle(chosen, random);
                    chosen = chosen.subList(0, Math.min(chosen.size(), large ? 2 : 1 + random.nextInt(4)));
                    for (TopicPartition place : chosen)
                        for (int i = 0; i < count && !failed[0]; i++) send(producer, name, place, next, padding, open, failed);
                    double weight = chosen.size() * count * (1 + padding / 8192.0);
                    long until = System.nanoTime() + (long) (weight / rate * 1e9);
                    while (!stop && !failed[0] && (System.nanoTime() < until || open.size() > MAX_OUTSTANDING)) Thread.sleep(20);
                }
                long until = Long.MAX_VALUE;
                while (!open.isEmpty()) {
                    if (stop && until == Long.MAX_VALUE) until = System.nanoTime() + (long) (settleSeconds() * 1e9);
                    if (System.nanoTime() > until) break;
                    Thread.sleep(50);
                }
                producer.close(Duration.ofSeconds(open.isEmpty() ? 10 : 0));
            }
            for (String left : open) history.stamped(left.substring(0, left.indexOf(' ')), "produce", "F", left.substring(left.indexOf(' ') + 1) + " no_answer");
        }

        void send(KafkaProducer<byte[], byte[]> producer, String name, TopicPartition place, Map<TopicPartition, Integer> next, int padding, Set<String> open, boolean[] failed) {
            int number = next.merge(place, 1, Integer::sum) - 1;
            String where = place.topic() + "/" + place.partition();
            String which = name + " " + number;
            byte[] key = ("k" + number % 50).getBytes(StandardCharsets.US_ASCII);
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(place.topic(), place.partition(), key, encode(name, number, place, padding));
            open.add(where + " " + which);
            history.stamped(where, "produce", "S", which + " 1");
            try {
                producer.send(record, (told, error) -> {
                    if (!open.remove(where + " " + which)) return;
                    if (error == null) {
                        history.stamped(where, "produce", "A", which + " " + (told.hasOffset() ? told.offset() : -1));
                    } else {
                        failed[0] = true;
                        history.stamped(where, "produce", "F", which + " " + error.getClass().getSimpleName());
                    }
                });
            } catch (KafkaException error) {
                failed[0] = true;
                if (open.remove(where + " " + which)) history.stamped(where, "produce", "F", which + " " + error.getClass().getSimpleName());
            }
        }
    }

    static byte[] encode(String producer, int number, TopicPartition place, int padding) {
        String head = spec.getProperty("run") + " " + producer + " " + number + " " + place.topic() + " " + place.partition() + " " + padding;
        CRC32 crc = new CRC32();
        byte[] fields = head.getBytes(StandardCharsets.US_ASCII);
        crc.update(fields);
        crc.update(block, 0, padding);
        byte[] front = (head + String.format(" %08x\n", crc.getValue())).getBytes(StandardCharsets.US_ASCII);
        byte[] value = Arrays.copyOf(front, front.length + padding);
        System.arraycopy(block, 0, value, front.length, padding);
        return value;
    }

    /** "producer number" of a record, or "! 0" when its bytes are not what was written. */
    static String identity(byte[] value) {
        int end = -1;
        for (int i = 0; value != null && end < 0 && i < Math.min(512, value.length); i++) if (value[i] == '\n') end = i;
        if (end < 0) return "! 0";
        String[] fields = new String(value, 0, end, StandardCharsets.US_ASCII).split(" ");
        if (fields.length != 7) return "! 0";
        CRC32 crc = new CRC32();
        crc.update(value, 0, end - fields[6].length() - 1);
        crc.update(value, end + 1, value.length - end - 1);
        return fields[6].equals(String.format("%08x", crc.getValue())) ? fields[1] + " " + fields[2] : "! 0";
    }

    // Groups.

    static List<Thread> members() {
        List<Thread> threads = new ArrayList<>();
        for (String group : spec.getProperty("groups").split(",")) {
            String[] parts = group.split(":");
            history.line("groups", parts[0] + " java " + parts[1]);
            for (int seat = 0; seat < Integer.parseInt(parts[2]); seat++) {
                String name = parts[0] + "-" + seat;
                Random random = new Random(seed(500 + threads.size()));
                threads.add(guarded(name, () -> {
                    for (int life = 0; !stop; life++) new Member(name + "-" + life, parts[0], parts[1]).live(20 + random.nextInt(70));
                }));
            }
            threads.add(guarded(parts[0] + "-watch", () -> watch(parts[0])));
        }
        return threads;
    }

    static Properties consumerConfig(String name, String group) {
        Properties config = new Properties();
        config.put("bootstrap.servers", spec.getProperty("bootstrap"));
        config.put("client.id", name);
        config.put("group.id", group);
        config.put("enable.auto.commit", false);
        config.put("auto.offset.reset", "earliest");
        config.put("reconnect.backoff.max.ms", 500);
        config.put("request.timeout.ms", 15000);
        config.put("default.api.timeout.ms", 20000);
        config.put("fetch.max.bytes", 4194304);
        config.put("key.deserializer", ByteArrayDeserializer.class.getName());
        config.put("value.deserializer", ByteArrayDeserializer.class.getName());
        return config;
    }

    /** Fetches the group's committed offsets from outside; after "drain", stops the process when all are at the end. */
    static void watch(String group) throws Exception {
        long until = Long.MAX_VALUE;
        // After a time-out the client keeps its request, and gives that request's answer to the next call. So an answer may
        // be as old as the first call since the last success.
        long asked = 0;
        try (KafkaConsumer<byte[], byte[]> client = new KafkaConsumer<>(consumerConfig(group + "-watch", group))) {
            while (!stop) {
                Thread.sleep(1000);
                if (drain && until == Long.MAX_VALUE) until = System.nanoTime() + (long) (settleSeconds() * 1e9);
                try {
                    if (asked == 0) asked = System.currentTimeMillis();
                    long begun = asked;
                    Map<TopicPartition, OffsetAndMetadata> found = client.committed(new HashSet<>(places));
                    asked = 0;
                    Map<TopicPartition, Long> ends = drain ? client.endOffsets(places) : Map.of();
                    boolean atEnd = drain;
                    for (TopicPartition place : places) {
                        long offset = found.get(place) == null ? 0 : found.get(place).offset();
                        history.part(place, "group", "O " + begun + " " + System.currentTimeMillis() + " " + group + " " + offset);
                        if (!ends.isEmpty()) history.part(place, "group", "E " + System.currentTimeMillis() + " " + group + " " + ends.get(place));
                        atEnd = atEnd && offset >= ends.get(place);
                    }
                    if (atEnd) stop = true;
                } catch (InterruptException error) {
                    throw error;
                } catch (KafkaException error) {
                    Thread.sleep(200);
                }
                if (System.nanoTime() > until) stop = true;
            }
        }
    }

    static class Member implements ConsumerRebalanceListener {
        final String name, group;
        final KafkaConsumer<byte[], byte[]> client;
        final Map<TopicPartition, OffsetAndMetadata> dirty = new HashMap<>();
        int generation = 0;

        Member(String name, String group, String protocol) {
            this.name = name;
            this.group = group;
            Properties config = consumerConfig(name, group);
            config.put("group.protocol", protocol);
            if (protocol.equals("classic")) config.put("session.timeout.ms", 10000);
            client = new KafkaConsumer<>(config);
        }

        void live(int seconds) {
            long end = System.nanoTime() + seconds * 1_000_000_000L, commitAt = 0;
            Set<String> topics = new HashSet<>();
            for (TopicPartition place : places) topics.add(place.topic());
            try {
                client.subscribe(topics, this);
                while (!stop && (drain || System.nanoTime() < end)) {
                    try {
                        for (ConsumerRecord<byte[], byte[]> record : client.poll(Duration.ofMillis(200))) read(record);
                    } catch (InterruptException error) {
                        throw error;
                    } catch (KafkaException error) {
                        sleep(200);
                    }
                    if (System.nanoTime() >= commitAt) {
                        commit();
                        commitAt = System.nanoTime() + 500_000_000L;
                    }
                }
                commit();
            } finally {
                try {
                    client.close(Duration.ofSeconds(10));
                } catch (KafkaException error) {
                    sleep(200);
                }
            }
        }

        void read(ConsumerRecord<byte[], byte[]> record) {
            TopicPartition place = new TopicPartition(record.topic(), record.partition());
            history.stamped(where(place), "group", "R", group + " " + name + " " + generation + " " + record.offset() + " " + identity(record.value()));
            dirty.put(place, new OffsetAndMetadata(record.offset() + 1));
        }

        void commit() {
            if (dirty.isEmpty()) return;
            long begun = System.currentTimeMillis();
            Map<TopicPartition, OffsetAndMetadata> wanted = new LinkedHashMap<>(dirty);
            try {
                client.commitSync(wanted, Duration.ofSeconds(10));
            } catch (InterruptException error) {
                throw error;
            } catch (KafkaException error) {
                return;
            }
            for (Map.Entry<TopicPartition, OffsetAndMetadata> each : wanted.entrySet())
                history.part(each.getKey(), "group", "C " + begun + " " + System.currentTimeMillis() + " " + group + " " + name + " " + each.getValue().offset());
            dirty.clear();
        }

        public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
            generation = client.groupMetadata().generationId();
            dirty.keySet().removeAll(assigned);
            for (TopicPartition place : assigned) history.stamped(where(place), "group", "T", group + " " + name + " " + generation);
        }

        public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
            commit();
            dirty.keySet().removeAll(revoked);
        }

        public void onPartitionsLost(Collection<TopicPartition> lost) {
            dirty.keySet().removeAll(lost);
        }
    }

    static String where(TopicPartition place) {
        return place.topic() + "/" + place.partition();
    }

    static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    // The history: see history.py.

    static class History {
        final Path directory;
        final String process;
        final Map<Path, BufferedWriter> files = new HashMap<>();
        long flushed = 0;

        History(Path directory, String process) {
            this.directory = directory;
            this.process = process;
        }

        synchronized void line(String folder, String line) {
            write(directory.resolve(folder).resolve(process), line);
        }

        synchronized void part(TopicPartition place, String kind, String line) {
            write(directory.resolve("parts").resolve(where(place)).resolve(process + "." + kind), line);
        }

        synchronized void stamped(String where, String suffix, String kind, String rest) {
            write(directory.resolve("parts").resolve(where).resolve(process + "." + suffix), kind + " " + System.currentTimeMillis() + " " + rest);
        }

        private void write(Path path, String line) {
            try {
                BufferedWriter file = files.get(path);
                if (file == null) {
                    Files.createDirectories(path.getParent());
                    file = Files.newBufferedWriter(path, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
                    files.put(path, file);
                }
                file.write(line + "\n");
                if (System.currentTimeMillis() - flushed > 1000) {
                    flushed = System.currentTimeMillis();
                    for (BufferedWriter each : files.values()) each.flush();
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        synchronized void close() throws IOException {
            for (BufferedWriter file : files.values()) file.close();
        }
    }
}
