// Kafka Streams does the workload `count` of our tasks: exactly once, in one thread, without a cache.
// Arguments: a file of properties, and the file for the figures. Each figure is measured as tasks.py measures it.

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.Reader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import java.util.zip.CRC32;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

public final class Streams {
    private static final String STORE = "counts";
    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    // Written by the only stream thread, read after the last commit.
    private static volatile long processed;
    private static volatile long began;
    private static volatile long cpuBegan;
    private static long warmUp;
    private static long events;

    /** Adds one to the count of a key, and forwards the count with the event's value. */
    private static final class Counting implements Processor<Bytes, byte[], Bytes, byte[]> {
        private ProcessorContext<Bytes, byte[]> context;
        private KeyValueStore<Bytes, byte[]> store;

        @Override
        public void init(ProcessorContext<Bytes, byte[]> context) {
            this.context = context;
            store = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<Bytes, byte[]> record) {
            byte[] kept = store.get(record.key());
            long count = kept == null ? 1 : ByteBuffer.wrap(kept).getLong() + 1;
            byte[] counted = ByteBuffer.allocate(8 + record.value().length).putLong(count).put(record.value()).array();
            store.put(record.key(), counted);
            context.forward(record.withValue(counted));
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

        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(
            Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), Serdes.Bytes(), Serdes.ByteArray()));
        builder.stream("events", Consumed.with(Serdes.Bytes(), Serdes.ByteArray()))
            .process(Counting::new, STORE)
            .to("counts-out", Produced.with(Serdes.Bytes(), Serdes.ByteArray()));

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
            write(Path.of(arguments[1]), streams, seconds, cpuSeconds);
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

    private static void write(Path file, KafkaStreams streams, double seconds, double cpuSeconds) throws Exception {
        ReadOnlyKeyValueStore<Bytes, byte[]> store =
            streams.store(StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.keyValueStore()));
        long entries = 0;
        long checksum = 0;
        try (KeyValueIterator<Bytes, byte[]> all = store.all()) {
            while (all.hasNext()) {
                var entry = all.next();
                CRC32 crc = new CRC32();
                crc.update(entry.key.get());
                crc.update(entry.value);
                checksum += crc.getValue();
                entries++;
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
}
