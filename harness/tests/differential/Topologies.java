// The topologies of topologies.py in Kafka Streams: exactly once, without a cache.
// Arguments: a file of properties, and the file for the entries of the store. At a line on the standard input it writes
// them, a JSON object per line with the names of `txstores dump`, and ends. At the end of that input it ends at once.

import java.io.PrintWriter;
import java.io.Reader;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.StreamPartitioner;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreType;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.WindowStore;

public final class Topologies {
    private static final Serde<String> TEXT = Serdes.String();
    private static final String STORE = "store";
    private static Properties given;

    public static void main(String[] arguments) throws Exception {
        given = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            given.load(reader);
        }
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given.getProperty("application"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given.getProperty("address"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given.getProperty("state"));
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, given.getProperty("commit_interval_ms"));
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        // Brokers delete records of a window store's changelog by their own times, which are long ago here.
        settings.put(StreamsConfig.WINDOW_STORE_CHANGE_LOG_ADDITIONAL_RETENTION_MS_CONFIG, Duration.ofDays(36_500).toMillis());
        settings.put("auto.offset.reset", "earliest");
        settings.put("session.timeout.ms", given.getProperty("session_timeout_ms"));
        settings.put("heartbeat.interval.ms", given.getProperty("heartbeat_interval_ms"));

        try (KafkaStreams streams = new KafkaStreams(topology(), settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            if (System.in.read() < 0) {
                Runtime.getRuntime().halt(86); // The process that started this one has died.
            }
            while (streams.state() != KafkaStreams.State.RUNNING) {
                Thread.sleep(20);
            }
            try (PrintWriter lines = new PrintWriter(arguments[1], StandardCharsets.UTF_8)) {
                write(streams, lines);
            }
            streams.close(Duration.ofSeconds(30));
        }
    }

    private static Topology topology() {
        String input = given.getProperty("input"), output = given.getProperty("output");
        StreamsBuilder builder = new StreamsBuilder();
        Consumed<String, String> consumed = Consumed.with(TEXT, TEXT);
        switch (given.getProperty("topology")) {
            case "count" -> builder.stream(input, consumed).groupByKey()
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(STORE))
                .toStream().mapValues(String::valueOf).to(output, Produced.with(TEXT, TEXT));
            case "windows" -> grouped(builder, input)
                .windowedBy(TimeWindows.ofSizeAndGrace(time("size_ms"), time("grace_ms")))
                .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as(STORE)
                    .withKeySerde(TEXT).withRetention(time("retention_ms")))
                .toStream()
                .map((key, count) -> KeyValue.pair(key.key() + "@" + key.window().start(), String.valueOf(count)))
                .to(output, Produced.with(TEXT, TEXT, new ByKey()));
            case "sessions" -> grouped(builder, input)
                .windowedBy(SessionWindows.ofInactivityGapAndGrace(time("gap_ms"), time("grace_ms")))
                .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as(STORE)
                    .withKeySerde(TEXT).withRetention(time("retention_ms")))
                .toStream()
                .map((key, count) -> KeyValue.pair(
                    key.key() + "@" + key.window().start() + "-" + key.window().end(),
                    count == null ? null : String.valueOf(count)))
                .to(output, Produced.with(TEXT, TEXT, new ByKey()));
            case "join" -> {
                var table = builder.table(
                    given.getProperty("table"), consumed, Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(STORE));
                builder.stream(input, consumed).join(table, (value, other) -> value + "/" + other)
                    .to(output, Produced.with(TEXT, TEXT));
            }
            case "dead-letters" -> {
                return deadLetters(input, output, given.getProperty("letters"));
            }
            default -> throw new IllegalArgumentException(given.getProperty("topology"));
        }
        return builder.build();
    }

    private static KGroupedStream<String, String> grouped(StreamsBuilder builder, String input) {
        return builder.stream(input, Consumed.with(TEXT, TEXT)).groupByKey();
    }

    private static Duration time(String name) {
        return Duration.ofMillis(Long.parseLong(given.getProperty(name)));
    }

    /** All outputs of a key are in one partition, whatever their window is. */
    private static final class ByKey implements StreamPartitioner<String, String> {
        @Override
        public Optional<Set<Integer>> partitions(String topic, String key, String value, int number) {
            byte[] own = key.split("@")[0].getBytes(StandardCharsets.UTF_8);
            return Optional.of(Set.of(Utils.toPositive(Utils.murmur2(own)) % number));
        }
    }

    private static Topology deadLetters(String input, String output, String letters) {
        ByteArraySerializer bytes = new ByteArraySerializer();
        return new Topology()
            .addSource("input", new ByteArrayDeserializer(), new ByteArrayDeserializer(), input)
            .addProcessor("numbering", Numbering::new, "input")
            .addStateStore(
                Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), TEXT, Serdes.Long()), "numbering")
            .addSink("outputs", output, bytes, bytes, "numbering")
            .addSink("letters", letters, bytes, bytes, "numbering");
    }

    /** Numbers the amounts of a key. Kafka Streams 4.1 has no dead-letter queue (KIP-1034): this catches errors itself. */
    private static final class Numbering implements Processor<byte[], byte[], byte[], byte[]> {
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<String, Long> store;

        @Override
        public void init(ProcessorContext<byte[], byte[]> context) {
            this.context = context;
            store = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            byte[] value;
            try {
                value = output(text(record.key()), text(record.value()));
            } catch (CharacterCodingException | RuntimeException error) {
                context.forward(record.withHeaders(headers(record.headers(), error)), "letters");
                return;
            }
            context.forward(record.withValue(value), "outputs");
        }

        private byte[] output(String key, String value) {
            if (key == null) {
                throw new IllegalArgumentException("a record without a key");
            }
            if (value == null) {
                store.delete(key);
                return null;
            }
            Long before = store.get(key);
            long number = before == null ? 1 : before + 1;
            store.put(key, number);
            return (number + ":" + Long.parseLong(value)).getBytes(StandardCharsets.UTF_8);
        }

        private Headers headers(Headers own, Exception error) {
            RecordMetadata origin = context.recordMetadata().orElseThrow();
            Headers headers = new RecordHeaders(own);
            add(headers, "exception", error.getClass().getName());
            add(headers, "message", String.valueOf(error.getMessage()));
            add(headers, "stacktrace", error.toString());
            add(headers, "topic", origin.topic());
            add(headers, "partition", String.valueOf(origin.partition()));
            add(headers, "offset", String.valueOf(origin.offset()));
            return headers;
        }

        private static void add(Headers headers, String name, String text) {
            headers.add("__streams.errors." + name, text.getBytes(StandardCharsets.UTF_8));
        }

        private static String text(byte[] data) throws CharacterCodingException {
            return data == null ? null : StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(data)).toString();
        }
    }

    private static void write(KafkaStreams streams, PrintWriter lines) {
        switch (given.getProperty("topology")) {
            case "count", "join" -> {
                var store = store(streams, QueryableStoreTypes.<String, Object>timestampedKeyValueStore());
                try (KeyValueIterator<String, ValueAndTimestamp<Object>> all = store.all()) {
                    all.forEachRemaining(entry -> lines.println(
                        line(entry.key, entry.value.value(), "timestamp_ms", entry.value.timestamp())));
                }
            }
            case "windows" -> {
                var store = store(streams, QueryableStoreTypes.<String, Long>timestampedWindowStore());
                try (KeyValueIterator<Windowed<String>, ValueAndTimestamp<Long>> all = store.all()) {
                    all.forEachRemaining(entry -> lines.println(line(
                        entry.key.key(), entry.value.value(),
                        "window_start_ms", entry.key.window().start(), "timestamp_ms", entry.value.timestamp())));
                }
            }
            case "sessions" -> {
                var store = store(streams, QueryableStoreTypes.<String, Long>sessionStore());
                try (KeyValueIterator<Windowed<String>, Long> all = store.fetch(null, null)) {
                    all.forEachRemaining(entry -> lines.println(line(
                        entry.key.key(), entry.value,
                        "session_start_ms", entry.key.window().start(), "session_end_ms", entry.key.window().end())));
                }
            }
            default -> {
                var store = store(streams, QueryableStoreTypes.<String, Long>keyValueStore());
                try (KeyValueIterator<String, Long> all = store.all()) {
                    all.forEachRemaining(entry -> lines.println(line(entry.key, entry.value)));
                }
            }
        }
    }

    private static <T> T store(KafkaStreams streams, QueryableStoreType<T> type) {
        return streams.store(StoreQueryParameters.fromNameAndType(STORE, type));
    }

    /** Texts need no escapes here. */
    private static String line(String key, Object value, Object... times) {
        StringBuilder line = new StringBuilder("{\"key\": \"" + key + "\", \"value\": ");
        line.append(value instanceof Long ? value : "\"" + value + "\"");
        for (int place = 0; place < times.length; place += 2) {
            line.append(", \"" + times[place] + "\": " + times[place + 1]);
        }
        return line.append("}").toString();
    }
}
