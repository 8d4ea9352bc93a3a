// Kafka Streams does the work of our tasks: exactly once, in one thread, without a cache. It knows the workload
// `count`, and q4, q7 and q11 of Nexmark, with the algorithms of nexmark_queries.py over its own stores.
// Arguments: a file of properties, and the file for the figures. Each figure is measured as tasks.py measures it.

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.Reader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;
import java.util.zip.CRC32;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

public final class Streams {
    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final Serde<String> TEXT = Serdes.String();
    private static final Duration WINDOW = Duration.ofSeconds(10);
    private static final Duration KEPT = Duration.ofDays(400);
    private static final String NOTHING = "null";

    // Written by the only stream thread, read after the last commit.
    private static volatile long processed;
    private static volatile long began;
    private static volatile long cpuBegan;
    private static long warmUp;
    private static long events;

    /** A store, and a scan of all that it has in all partitions. */
    private record Kept(StoreBuilder<?> store, Function<KafkaStreams, KeyValueIterator<?, ?>> all) {
        static <K, V> Kept values(String name, Serde<K> key, Serde<V> value) {
            return new Kept(
                Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(name), key, value),
                streams -> streams.store(
                    StoreQueryParameters.fromNameAndType(name, QueryableStoreTypes.<K, V>keyValueStore()))
                    .all());
        }

        static Kept windows(String name) {
            return new Kept(
                Stores.windowStoreBuilder(Stores.persistentWindowStore(name, KEPT, WINDOW, false), TEXT, TEXT),
                streams -> streams.store(
                    StoreQueryParameters.fromNameAndType(name, QueryableStoreTypes.<String, String>windowStore()))
                    .all());
        }

        static Kept sessions(String name) {
            return new Kept(
                Stores.sessionStoreBuilder(Stores.persistentSessionStore(name, KEPT), TEXT, Serdes.Long()),
                streams -> streams.store(
                    StoreQueryParameters.fromNameAndType(name, QueryableStoreTypes.<String, Long>sessionStore()))
                    .fetch(null, null));
        }
    }

    /** A workload: the topic of its outputs, its stores, and the function of a record. */
    private record Workload(String output, ProcessorSupplier<Bytes, byte[], Bytes, byte[]> work, List<Kept> kept) {
        static Workload named(String name) {
            return switch (name) {
                case "count" -> new Workload(
                    "counts-out", Counting::new, List.of(Kept.values("counts", Serdes.Bytes(), Serdes.ByteArray())));
                case "nexmark_q4" -> new Workload(
                    "nexmark-out",
                    AveragePrice::new,
                    List.of(Kept.values("auctions", TEXT, TEXT), Kept.values("categories", TEXT, TEXT)));
                case "nexmark_q7" -> new Workload(
                    "nexmark-out", HighestBid::new, List.of(Kept.windows("highest")));
                case "nexmark_q11" -> new Workload(
                    "nexmark-out", UserSessions::new, List.of(Kept.sessions("sessions")));
                default -> throw new IllegalArgumentException(name);
            };
        }
    }

    /** Forwards one output for each record, and notes when the warm-up is over. */
    private abstract static class Work implements Processor<Bytes, byte[], Bytes, byte[]> {
        ProcessorContext<Bytes, byte[]> context;

        @Override
        public void init(ProcessorContext<Bytes, byte[]> context) {
            this.context = context;
        }

        abstract byte[] output(Record<Bytes, byte[]> record);

        @Override
        public final void process(Record<Bytes, byte[]> record) {
            context.forward(record.withValue(output(record)));
            long number = processed + 1;
            processed = number;
            if (number == warmUp) {
                cpuBegan = SYSTEM.getProcessCpuTime();
                began = System.nanoTime();
            } else if (number == events) {
                context.commit(); // Not only when the interval is over.
            }
        }
    }

    /** Adds one to the count of a key, and forwards the count with the event's value. */
    private static final class Counting extends Work {
        private KeyValueStore<Bytes, byte[]> store;

        @Override
        public void init(ProcessorContext<Bytes, byte[]> context) {
            super.init(context);
            store = context.getStateStore("counts");
        }

        @Override
        byte[] output(Record<Bytes, byte[]> record) {
            byte[] kept = store.get(record.key());
            long count = kept == null ? 1 : ByteBuffer.wrap(kept).getLong() + 1;
            byte[] counted = ByteBuffer.allocate(8 + record.value().length).putLong(count).put(record.value()).array();
            store.put(record.key(), counted);
            return counted;
        }
    }

    /** A query of Nexmark, which gets the fields of an event. States and outputs are JSON. */
    private abstract static class Query extends Work {
        abstract String apply(String[] event, long timeMs);

        @Override
        final byte[] output(Record<Bytes, byte[]> record) {
            String[] event = new String(record.value(), StandardCharsets.UTF_8).split(",");
            return apply(event, record.timestamp()).getBytes(StandardCharsets.UTF_8);
        }

        /** The items of a list, without their quotation marks: no text here has a comma. */
        static String[] items(String list) {
            return list.substring(1, list.length() - 1).replace("\"", "").split(",");
        }
    }

    /** q4: the mean of the highest bids of auctions, by category. */
    private static final class AveragePrice extends Query {
        private KeyValueStore<String, String> auctions;
        private KeyValueStore<String, String> categories;

        @Override
        public void init(ProcessorContext<Bytes, byte[]> context) {
            super.init(context);
            auctions = context.getStateStore("auctions");
            categories = context.getStateStore("categories");
        }

        @Override
        String apply(String[] event, long timeMs) {
            String auction = event[1];
            if (event[0].equals("A")) {
                auctions.put(auction, "[\"" + event[2] + "\"," + timeMs + "," + event[4] + ",null]");
                return NOTHING;
            }
            String kept = auctions.get(auction);
            if (kept == null) {
                return NOTHING;
            }
            String[] opened = items(kept);
            String category = opened[0];
            boolean first = opened[3].equals(NOTHING);
            long price = Long.parseLong(event[3]), best = first ? 0 : Long.parseLong(opened[3]);
            boolean lasts = timeMs >= Long.parseLong(opened[1]) && timeMs <= Long.parseLong(opened[2]);
            if (!lasts || (!first && price <= best)) {
                return NOTHING;
            }
            auctions.put(auction, "[\"" + category + "\"," + opened[1] + "," + opened[2] + "," + price + "]");
            String before = categories.get(category);
            String[] sums = before == null ? new String[] {"0", "0"} : items(before);
            long total = Long.parseLong(sums[0]) + price - best, number = Long.parseLong(sums[1]) + (first ? 1 : 0);
            categories.put(category, "[" + total + "," + number + "]");
            return "[\"" + category + "\"," + total / number + "]";
        }
    }

    /** q7: the highest bid of each ten seconds; the first one of several. */
    private static final class HighestBid extends Query {
        private WindowStore<String, String> highest;

        @Override
        public void init(ProcessorContext<Bytes, byte[]> context) {
            super.init(context);
            highest = context.getStateStore("highest");
        }

        @Override
        String apply(String[] event, long timeMs) {
            long startMs = timeMs / WINDOW.toMillis() * WINDOW.toMillis();
            String before = highest.fetch("all", startMs);
            if (before != null && Long.parseLong(items(before)[0]) >= Long.parseLong(event[3])) {
                return NOTHING;
            }
            String bid = "[" + event[3] + ",\"" + event[1] + "\",\"" + event[2] + "\"]";
            highest.put("all", bid, startMs);
            return bid;
        }
    }

    /** q11: the bids of each bidder in sessions, which end after ten seconds without one. */
    private static final class UserSessions extends Query {
        private SessionStore<String, Long> sessions;

        @Override
        public void init(ProcessorContext<Bytes, byte[]> context) {
            super.init(context);
            sessions = context.getStateStore("sessions");
        }

        @Override
        String apply(String[] event, long timeMs) {
            String bidder = event[2];
            long gapMs = WINDOW.toMillis(), startMs = timeMs, endMs = timeMs, bids = 1;
            List<Windowed<String>> parts = new ArrayList<>();
            try (KeyValueIterator<Windowed<String>, Long> found =
                    sessions.findSessions(bidder, timeMs - gapMs, timeMs + gapMs)) {
                while (found.hasNext()) {
                    var part = found.next();
                    startMs = Math.min(startMs, part.key.window().start());
                    endMs = Math.max(endMs, part.key.window().end());
                    bids += part.value;
                    parts.add(part.key);
                }
            }
            Windowed<String> merged = new Windowed<>(bidder, new SessionWindow(startMs, endMs));
            for (Windowed<String> part : parts) {
                if (!part.equals(merged)) {
                    sessions.remove(part);
                }
            }
            sessions.put(merged, bids);
            return "[" + startMs + "," + endMs + "," + bids + "]";
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties given = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            given.load(reader);
        }
        Thread watch = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (IOException ended) {
                // As at its end.
            }
            Runtime.getRuntime().halt(86); // The process that started this one has died.
        });
        watch.setDaemon(true);
        watch.start();
        events = Long.parseLong(given.getProperty("events"));
        warmUp = Long.parseLong(given.getProperty("warm_up"));
        int partitions = Integer.parseInt(given.getProperty("partitions"));
        String application = given.getProperty("application");

        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given.getProperty("address"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given.getProperty("state"));
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, given.getProperty("commit_interval_ms"));
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put("auto.offset.reset", "earliest");
        settings.put("producer.transaction.timeout.ms", 60_000); // As the client of our tasks; by default 10 s.

        Workload workload = Workload.named(given.getProperty("workload"));
        StreamsBuilder builder = new StreamsBuilder();
        workload.kept.forEach(kept -> builder.addStateStore(kept.store));
        builder.stream("events", Consumed.with(Serdes.Bytes(), Serdes.ByteArray()))
            .process(workload.work, workload.kept.stream().map(kept -> kept.store.name()).toArray(String[]::new))
            .to(workload.output, Produced.with(Serdes.Bytes(), Serdes.ByteArray()));

        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings); Admin admin = Admin.create(settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                failure.set(error);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            while (processed < events || committed(admin, application, partitions) < events) {
                if (failure.get() != null) {
                    throw new IllegalStateException(failure.get());
                }
                Thread.sleep(5);
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            double cpuSeconds = (SYSTEM.getProcessCpuTime() - cpuBegan) / 1e9;
            write(Path.of(arguments[1]), streams, workload, seconds, cpuSeconds);
            streams.close(Duration.ofSeconds(30));
        }
    }

    private static long committed(Admin admin, String application, int partitions) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets =
            admin.listConsumerGroupOffsets(application).partitionsToOffsetAndMetadata().get();
        long sum = 0;
        for (int partition = 0; partition < partitions; partition++) {
            OffsetAndMetadata offset = offsets.get(new TopicPartition("events", partition));
            sum += offset == null ? 0 : offset.offset();
        }
        return sum;
    }

    private static void write(Path file, KafkaStreams streams, Workload workload, double seconds, double cpuSeconds)
            throws Exception {
        long entries = 0;
        long checksum = 0;
        for (Kept kept : workload.kept) {
            try (KeyValueIterator<?, ?> all = kept.all.apply(streams)) {
                while (all.hasNext()) {
                    var entry = all.next();
                    CRC32 crc = new CRC32();
                    crc.update(bytes(entry.key));
                    crc.update(bytes(entry.value));
                    checksum += crc.getValue();
                    entries++;
                }
            }
        }
        Files.writeString(
            file,
            String.format(
                Locale.ROOT,
                "{\"records\": %d, \"seconds\": %.6f, \"cpu_s\": %.6f, \"entries\": %d, \"checksum\": \"%08x\"}",
                events - warmUp,
                seconds,
                cpuSeconds,
                entries,
                checksum & 0xFFFFFFFFL));
    }

    /** Bytes as they are, and everything else as the plain pairs of our stores. */
    private static byte[] bytes(Object part) {
        if (part instanceof byte[] data) {
            return data;
        }
        if (part instanceof Bytes data) {
            return data.get();
        }
        String text = part instanceof Windowed<?> windowed
            ? windowed.key() + "@" + windowed.window().start() + "-" + windowed.window().end()
            : part.toString();
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
