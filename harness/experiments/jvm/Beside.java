// The JVM's side: RocksDB through rocksdbjni, used in the shapes of Kafka Streams' own stores, does the work of ours.py.
// Arguments: a file of properties, and the file for the figures. Each figure is measured as ours.py measures it.

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.Reader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.TreeMap;
import java.util.zip.CRC32;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.BloomFilter;
import org.rocksdb.Cache;
import org.rocksdb.ColumnFamilyDescriptor;
import org.rocksdb.ColumnFamilyHandle;
import org.rocksdb.ColumnFamilyOptions;
import org.rocksdb.CompactionStyle;
import org.rocksdb.CompressionType;
import org.rocksdb.DBOptions;
import org.rocksdb.IndexType;
import org.rocksdb.LRUCache;
import org.rocksdb.ReadOptions;
import org.rocksdb.RocksDB;
import org.rocksdb.RocksDBException;
import org.rocksdb.RocksIterator;
import org.rocksdb.WriteBatch;
import org.rocksdb.WriteBatchWithIndex;
import org.rocksdb.WriteBufferManager;
import org.rocksdb.WriteOptions;

public final class Beside {
    /** One way to stage writes. A commit makes them visible together with a changelog offset. */
    private abstract static class Shape {
        final RocksDB db;
        final ColumnFamilyHandle offsets;
        final WriteOptions writing = new WriteOptions().setDisableWAL(true);

        Shape(RocksDB db, ColumnFamilyHandle offsets) {
            this.db = db;
            this.offsets = offsets;
        }

        abstract void put(byte[] key, byte[] value) throws RocksDBException;

        abstract byte[] get(byte[] key) throws RocksDBException;

        abstract void commit(byte[] offset) throws RocksDBException;
    }

    /** A write batch beside a sorted map, which reads look into first. */
    private static final class MapAndBatch extends Shape {
        private final TreeMap<byte[], byte[]> staged = new TreeMap<>(Arrays::compareUnsigned);
        private final WriteBatch batch = new WriteBatch();

        MapAndBatch(RocksDB db, ColumnFamilyHandle offsets) {
            super(db, offsets);
        }

        @Override
        void put(byte[] key, byte[] value) throws RocksDBException {
            staged.put(key, value);
            batch.put(key, value);
        }

        @Override
        byte[] get(byte[] key) throws RocksDBException {
            byte[] found = staged.get(key);
            return found != null ? found : db.get(key);
        }

        @Override
        void commit(byte[] offset) throws RocksDBException {
            batch.put(offsets, CHANGELOG, offset);
            db.write(writing, batch);
            batch.clear();
            staged.clear();
        }
    }

    /** RocksDB's own WriteBatchWithIndex. */
    private static final class IndexedBatch extends Shape {
        private final WriteBatchWithIndex batch = new WriteBatchWithIndex(true);
        private final ReadOptions reading = new ReadOptions();

        IndexedBatch(RocksDB db, ColumnFamilyHandle offsets) {
            super(db, offsets);
        }

        @Override
        void put(byte[] key, byte[] value) throws RocksDBException {
            batch.put(key, value);
        }

        @Override
        byte[] get(byte[] key) throws RocksDBException {
            return batch.getFromBatchAndDB(db, reading, key);
        }

        @Override
        void commit(byte[] offset) throws RocksDBException {
            batch.put(offsets, CHANGELOG, offset);
            db.write(writing, batch);
            batch.clear();
        }
    }

    /** Writes that are visible at once, as Kafka Streams makes them today: no transaction. */
    private static final class PlainPuts extends Shape {
        PlainPuts(RocksDB db, ColumnFamilyHandle offsets) {
            super(db, offsets);
        }

        @Override
        void put(byte[] key, byte[] value) throws RocksDBException {
            db.put(writing, key, value);
        }

        @Override
        byte[] get(byte[] key) throws RocksDBException {
            return db.get(key);
        }

        @Override
        void commit(byte[] offset) throws RocksDBException {
            db.put(offsets, writing, CHANGELOG, offset);
        }
    }

    /** The records of load.py. */
    private static final class Load {
        private static final long GAMMA = 0x9E3779B97F4A7C15L;
        private static final int KEYS = 0, VALUES = 1, DRAWS = 2;
        private final long seed;

        Load(long seed) {
            this.seed = seed;
        }

        byte[] key(long number) {
            return piece(KEYS, number, 2, 16);
        }

        byte[] value(long number) {
            return piece(VALUES, number, 13, 100);
        }

        int drawn(long number, int keys, long[] zipfBounds) {
            long draw = word(DRAWS, number) >>> 1;
            if (zipfBounds == null) {
                return (int) (draw % keys);
            }
            int place = Arrays.binarySearch(zipfBounds, draw % zipfBounds[keys - 1]);
            return place >= 0 ? place + 1 : -place - 1;
        }

        static long[] zipfBounds(int keys) {
            long[] bounds = new long[keys];
            long total = 0;
            for (int rank = 0; rank < keys; rank++) {
                total += (1L << 32) / (rank + 1);
                bounds[rank] = total;
            }
            return bounds;
        }

        private byte[] piece(int stream, long number, int words, int size) {
            ByteBuffer made = ByteBuffer.allocate(8 * words);
            for (int at = 0; at < words; at++) {
                made.putLong(word(stream, number * words + at));
            }
            return size == made.capacity() ? made.array() : Arrays.copyOf(made.array(), size);
        }

        private long word(int stream, long number) {
            return mixed(mixed(seed * GAMMA + stream) + (number + 1) * GAMMA);
        }

        private static long mixed(long word) {
            word = (word ^ (word >>> 30)) * 0xBF58476D1CE4E5B9L;
            word = (word ^ (word >>> 27)) * 0x94D049BB133111EBL;
            return word ^ (word >>> 31);
        }
    }

    private static final byte[] CHANGELOG = "changelog-0".getBytes(StandardCharsets.UTF_8);
    private static final int FILLED_AT_ONCE = 10_000;

    private final Properties given;
    private Shape shape;
    private long offset;
    private long missing;

    private Beside(Properties given) {
        this.given = given;
    }

    public static void main(String[] arguments) throws IOException, RocksDBException {
        endWithStarter();
        RocksDB.loadLibrary();
        Properties given = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
            given.load(file);
        }
        Files.writeString(Path.of(arguments[1]), new Beside(given).figures());
        // The database is thrown away: closing it would only cost time.
        Runtime.getRuntime().halt(0);
    }

    private String figures() throws RocksDBException {
        List<ColumnFamilyHandle> families = new ArrayList<>();
        RocksDB db = opened(families);
        shape = switch (given.getProperty("shape")) {
            case "map-and-batch" -> new MapAndBatch(db, families.get(1));
            case "indexed-batch" -> new IndexedBatch(db, families.get(1));
            case "plain-puts" -> new PlainPuts(db, families.get(1));
            default -> throw new IllegalArgumentException(given.getProperty("shape"));
        };
        Load load = new Load(number("seed"));
        String distribution = given.getProperty("distribution");
        int records = number("records"), perCommit = number("records_per_commit"), warmUp = number("warm_up_rounds");
        int keys = distribution.equals("fresh") ? 0 : number("keys");
        long[] zipfBounds = distribution.equals("zipf") ? Load.zipfBounds(keys) : null;
        for (int at = 0; at < keys; at++) {
            shape.put(load.key(at), load.value(at));
            if ((at + 1) % FILLED_AT_ONCE == 0 || at + 1 == keys) {
                commit();
            }
        }
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long nanos = 0, cpuNanos = 0;
        byte[][] chosen = new byte[records][], values = new byte[records][];
        for (int round = 0; round < warmUp + number("rounds"); round++) {
            long first = (long) round * records;
            for (int at = 0; at < records; at++) {
                chosen[at] = load.key(keys == 0 ? first + at : load.drawn(first + at, keys, zipfBounds));
                values[at] = load.value(keys + first + at);
            }
            System.gc();
            long cpuBegan = system.getProcessCpuTime(), began = System.nanoTime();
            for (int begin = 0; begin < records; begin += perCommit) {
                int end = Math.min(begin + perCommit, records);
                if (keys == 0) {
                    put(chosen, values, begin, end);
                } else {
                    update(chosen, values, begin, end);
                }
            }
            if (round >= warmUp) {
                nanos += System.nanoTime() - began;
                cpuNanos += system.getProcessCpuTime() - cpuBegan;
            }
        }
        CRC32 checksum = new CRC32();
        long entries = 0;
        try (RocksIterator pairs = db.newIterator()) {
            for (pairs.seekToFirst(); pairs.isValid(); pairs.next()) {
                checksum.update(pairs.key());
                checksum.update(pairs.value());
                entries++;
            }
            pairs.status();
        }
        return String.format(
                Locale.ROOT,
                "{\"seconds\": %.9f, \"cpu_s\": %.9f, \"missing\": %d, \"entries\": %d, \"checksum\": \"%08x\"}",
                nanos / 1e9, cpuNanos / 1e9, missing, entries, checksum.getValue());
    }

    private void put(byte[][] keys, byte[][] values, int begin, int end) throws RocksDBException {
        for (int at = begin; at < end; at++) {
            shape.put(keys[at], values[at]);
        }
        commit();
    }

    private void update(byte[][] keys, byte[][] values, int begin, int end) throws RocksDBException {
        for (int at = begin; at < end; at++) {
            if (shape.get(keys[at]) == null) {
                missing++;
            }
            shape.put(keys[at], values[at]);
        }
        commit();
    }

    private void commit() throws RocksDBException {
        offset++;
        shape.commit(ByteBuffer.allocate(8).putLong(offset).array());
    }

    private RocksDB opened(List<ColumnFamilyHandle> families) throws RocksDBException {
        Cache cache = new LRUCache(number("shared_memory_bytes"));
        WriteBufferManager buffers = new WriteBufferManager(number("shared_memory_bytes") / 2, cache, false);
        DBOptions options = new DBOptions()
                .setCreateIfMissing(true)
                .setCreateMissingColumnFamilies(true)
                .setAtomicFlush(true)
                .setWriteBufferManager(buffers)
                .setTableCacheNumshardbits(0)
                .setMaxFileOpeningThreads(number("max_file_opening_threads"))
                .setMaxBackgroundJobs(number("max_background_jobs"))
                .setKeepLogFileNum(1)
                .setStatsDumpPeriodSec(0)
                .setStatsPersistPeriodSec(0);
        return RocksDB.open(
                options,
                given.getProperty("store"),
                List.of(
                        new ColumnFamilyDescriptor(
                                RocksDB.DEFAULT_COLUMN_FAMILY,
                                // As the store does, where memory is limited.
                                family(
                                        cache,
                                        Math.min(
                                                number("write_buffer_size_bytes"),
                                                number("shared_memory_bytes") / 4))),
                        new ColumnFamilyDescriptor(
                                "offsets".getBytes(StandardCharsets.UTF_8),
                                family(cache, number("offsets_write_buffer_size_bytes")))),
                families);
    }

    private ColumnFamilyOptions family(Cache cache, long writeBufferBytes) {
        BlockBasedTableConfig table =
                new BlockBasedTableConfig().setBlockCache(cache).setFilterPolicy(new BloomFilter(10));
        if (Boolean.parseBoolean(given.getProperty("cache_index_and_filter_blocks"))) {
            table.setIndexType(IndexType.kTwoLevelIndexSearch)
                    .setPartitionFilters(true)
                    .setCacheIndexAndFilterBlocks(true)
                    .setPinTopLevelIndexAndFilter(true);
        }
        return new ColumnFamilyOptions()
                .setTableFormatConfig(table)
                .setWriteBufferSize(writeBufferBytes)
                .setMaxWriteBufferNumber(number("max_write_buffer_number"))
                .setOptimizeFiltersForHits(true)
                .setCompactionStyle(CompactionStyle.UNIVERSAL)
                .setCompressionType(CompressionType.NO_COMPRESSION)
                .setLevelZeroFileNumCompactionTrigger(number("level_zero_file_num_compaction_trigger"));
    }

    private int number(String name) {
        return Integer.parseInt(given.getProperty(name));
    }

    private static void endWithStarter() {
        Thread watch = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (IOException ended) {
                // As its end.
            }
            Runtime.getRuntime().halt(86);
        });
        watch.setDaemon(true);
        watch.start();
    }
}
