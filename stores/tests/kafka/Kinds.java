import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
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
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.query.MultiVersionedKeyQuery;
import org.apache.kafka.streams.query.StateQueryRequest;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreType;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.VersionedRecordIterator;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Stores of four kinds in Kafka Streams, exactly once: windows and sessions of topic "events" are counted by key, topic
 * "names" is a versioned table, and topic "prices" a global one.
 *
 * <p>Arguments: the broker's address, the application, the state directory, the offsets of "events" and "names" at which
 * to end, and the keys of "names". It prints a line for each entry: the store and its parts.
 */
public class Kinds {
    private static final Serde<String> TEXT = Serdes.String();
    private static final Duration RETENTION = Duration.ofMillis(120_000), GRACE = Duration.ofMillis(50_000);

    public static void main(String[] arguments) throws Exception {
        String application = arguments[1];
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        // Brokers delete records of a window store's changelog by their own times, which are long ago here.
        settings.put(
            StreamsConfig.WINDOW_STORE_CHANGE_LOG_ADDITIONAL_RETENTION_MS_CONFIG, Duration.ofDays(36_500).toMillis());
        settings.put("auto.offset.reset", "earliest");
        // By default its member stays in the group for 45 s, and the next one of the application waits for its end.
        settings.put("internal.leave.group.on.close", true);

        StreamsBuilder builder = new StreamsBuilder();
        KGroupedStream<String, String> events = builder.stream("events", Consumed.with(TEXT, TEXT)).groupByKey();
        events.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(10_000), GRACE))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("windows")
                .withKeySerde(TEXT).withValueSerde(Serdes.Long()).withRetention(RETENTION));
        events.windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(5_000), GRACE))
            .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("sessions")
                .withKeySerde(TEXT).withValueSerde(Serdes.Long()).withRetention(RETENTION));
        builder.table(
            "names",
            Consumed.with(TEXT, TEXT),
            Materialized.<String, String>as(
                    Stores.persistentVersionedKeyValueStore("versions", Duration.ofMillis(100_000)))
                .withKeySerde(TEXT).withValueSerde(TEXT));
        builder.globalTable(
            "prices",
            Consumed.with(TEXT, TEXT),
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("prices")
                .withKeySerde(TEXT).withValueSerde(TEXT));

        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings); Admin admin = Admin.create(settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                failure.set(error);
                return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler
                    .StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            while (streams.state() != KafkaStreams.State.RUNNING
                || committed(admin, application, "events") < Long.parseLong(arguments[3])
                || committed(admin, application, "names") < Long.parseLong(arguments[4])) {
                if (failure.get() != null) {
                    throw new IllegalStateException(failure.get());
                }
                Thread.sleep(20);
            }
            print(streams, arguments[5].split(","));
            streams.close(Duration.ofSeconds(30));
        }
    }

    private static void print(KafkaStreams streams, String[] names) {
        var windows = store(streams, "windows", QueryableStoreTypes.<String, Long>timestampedWindowStore());
        try (KeyValueIterator<Windowed<String>, ValueAndTimestamp<Long>> all = windows.all()) {
            all.forEachRemaining(entry -> print(
                "windows", entry.key.key(), entry.key.window().start(), entry.value.value(), entry.value.timestamp()));
        }
        var sessions = store(streams, "sessions", QueryableStoreTypes.<String, Long>sessionStore());
        try (KeyValueIterator<Windowed<String>, Long> all = sessions.fetch(null, null)) {
            all.forEachRemaining(entry -> print(
                "sessions", entry.key.key(), entry.key.window().start(), entry.key.window().end(), entry.value));
        }
        for (String name : names) {
            var query = MultiVersionedKeyQuery.<String, String>withKey(name).withAscendingTimestamps();
            var result = streams.query(StateQueryRequest.inStore("versions").withQuery(query)).getOnlyPartitionResult();
            try (VersionedRecordIterator<String> versions = result.getResult()) {
                while (versions.hasNext()) {
                    VersionedRecord<String> version = versions.next();
                    print("versions", name, version.timestamp(), version.validTo().orElse(-1L), version.value());
                }
            }
        }
        var prices = store(streams, "prices", QueryableStoreTypes.<String, String>timestampedKeyValueStore());
        try (KeyValueIterator<String, ValueAndTimestamp<String>> all = prices.all()) {
            all.forEachRemaining(entry -> print("prices", entry.key, entry.value.value(), entry.value.timestamp()));
        }
    }

    private static void print(Object... parts) {
        StringBuilder line = new StringBuilder();
        for (Object part : parts) {
            line.append(line.length() == 0 ? "" : " ").append(part);
        }
        System.out.println(line);
    }

    private static <T> T store(KafkaStreams streams, String name, QueryableStoreType<T> type) {
        return streams.store(StoreQueryParameters.fromNameAndType(name, type));
    }

    private static long committed(Admin admin, String application, String topic) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets =
            admin.listConsumerGroupOffsets(application).partitionsToOffsetAndMetadata().get();
        OffsetAndMetadata offset = offsets.get(new TopicPartition(topic, 0));
        return offset == null ? -1 : offset.offset();
    }
}
