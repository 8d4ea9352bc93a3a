// Kafka Streams keeps the latest value of each key in a store, exactly once, in one thread and without a cache. It works
// until it is killed. Arguments: a file of properties, and the file for the seconds from the assignment of its
// partitions to its first processed record, as tasks.py measures them.

import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Collection;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaClientSupplier;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

public final class Restart {
    private static final String STORE = "latest";

    // Written and read by the only stream thread.
    private static long assigned;
    private static boolean noted;
    private static Path figures;

    /** Keeps the value of each record under its key. */
    private static final class Keeping implements Processor<Bytes, byte[], Void, Void> {
        private KeyValueStore<Bytes, byte[]> store;

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            store = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<Bytes, byte[]> record) {
            store.put(record.key(), record.value());
            if (!noted) {
                noted = true;
                note((System.nanoTime() - assigned) / 1e9);
            }
        }
    }

    /** The clients of Kafka Streams, of which the consumer of the input notes its first assignment. */
    private static final class Clients implements KafkaClientSupplier {
        @Override
        public Admin getAdmin(Map<String, Object> config) {
            return Admin.create(config);
        }

        @Override
        public Producer<byte[], byte[]> getProducer(Map<String, Object> config) {
            return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
        }

        @Override
        public Consumer<byte[], byte[]> getConsumer(Map<String, Object> config) {
            return new NotingConsumer(config);
        }

        @Override
        public Consumer<byte[], byte[]> getRestoreConsumer(Map<String, Object> config) {
            return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        @Override
        public Consumer<byte[], byte[]> getGlobalConsumer(Map<String, Object> config) {
            return getRestoreConsumer(config);
        }
    }

    /** A consumer that notes when it first gets partitions, before Kafka Streams handles that. */
    private static final class NotingConsumer extends KafkaConsumer<byte[], byte[]> {
        NotingConsumer(Map<String, Object> config) {
            super(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        @Override
        public void subscribe(Collection<String> topics, ConsumerRebalanceListener listener) {
            super.subscribe(topics, new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    if (assigned == 0 && !partitions.isEmpty()) {
                        assigned = System.nanoTime();
                    }
                    listener.onPartitionsAssigned(partitions);
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    listener.onPartitionsRevoked(partitions);
                }

                @Override
                public void onPartitionsLost(Collection<TopicPartition> partitions) {
                    listener.onPartitionsLost(partitions);
                }
            });
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties given = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            given.load(reader);
        }
        figures = Path.of(arguments[1]);
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given.getProperty("application"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given.getProperty("address"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given.getProperty("state"));
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, given.getProperty("commit_interval_ms"));
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put("auto.offset.reset", "earliest");
        settings.put("session.timeout.ms", given.getProperty("session_timeout_ms"));

        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(
            Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), Serdes.Bytes(), Serdes.ByteArray()));
        builder.stream("events", Consumed.with(Serdes.Bytes(), Serdes.ByteArray())).process(Keeping::new, STORE);

        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings, new Clients())) {
            streams.setUncaughtExceptionHandler(error -> {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            try {
                while (System.in.read() >= 0) {}
            } catch (IOException ended) {
                // As at its end.
            }
            Runtime.getRuntime().halt(86); // The process that started this one has died.
        }
    }

    private static void note(double seconds) {
        Path part = figures.resolveSibling(figures.getFileName() + ".part");
        try {
            Files.writeString(part, String.format(Locale.ROOT, "{\"ready_s\": %.6f}", seconds));
            Files.move(part, figures, StandardCopyOption.ATOMIC_MOVE); // The harness waits for the file.
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
