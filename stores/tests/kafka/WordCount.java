import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;

/**
 * The word count in Kafka Streams, exactly once: topic "words", keyed by word, to topic "counted", in store "counts".
 *
 * <p>Arguments: the broker's address, the application, the state directory, and the input offset at which to end. It
 * prints a line of word, count and timestamp for each entry of its store.
 */
public class WordCount {
    public static void main(String[] arguments) throws Exception {
        String application = arguments[1];
        long end = Long.parseLong(arguments[3]);
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put("auto.offset.reset", "earliest");
        // By default its member stays in the group for 45 s, and the next one of the application waits for its end.
        settings.put("internal.leave.group.on.close", true);

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("words", Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey()
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts")
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.Long()))
            .toStream()
            .to("counted", Produced.with(Serdes.String(), Serdes.Long()));

        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings); Admin admin = Admin.create(settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                failure.set(error);
                return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler
                    .StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            while (streams.state() != KafkaStreams.State.RUNNING || committed(admin, application) < end) {
                if (failure.get() != null) {
                    throw new IllegalStateException(failure.get());
                }
                Thread.sleep(20);
            }
            ReadOnlyKeyValueStore<String, ValueAndTimestamp<Long>> counts = streams.store(
                StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.timestampedKeyValueStore()));
            try (KeyValueIterator<String, ValueAndTimestamp<Long>> all = counts.all()) {
                all.forEachRemaining(entry -> System.out.println(
                    entry.key + " " + entry.value.value() + " " + entry.value.timestamp()));
            }
            streams.close(Duration.ofSeconds(30));
        }
    }

    private static long committed(Admin admin, String application) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets =
            admin.listConsumerGroupOffsets(application).partitionsToOffsetAndMetadata().get();
        OffsetAndMetadata offset = offsets.get(new TopicPartition("words", 0));
        return offset == null ? -1 : offset.offset();
    }
}
