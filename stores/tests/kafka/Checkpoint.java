import java.io.File;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.state.internals.OffsetCheckpoint;

/**
 * Reads or writes a checkpoint file with the class of Kafka Streams.
 *
 * <p>"read FILE" prints lines of topic, partition and offset. "write FILE TOPIC PARTITION OFFSET ..." writes them.
 */
public class Checkpoint {
    public static void main(String[] arguments) throws Exception {
        OffsetCheckpoint checkpoint = new OffsetCheckpoint(new File(arguments[1]));
        if (arguments[0].equals("write")) {
            Map<TopicPartition, Long> offsets = new TreeMap<>(
                (one, other) -> one.toString().compareTo(other.toString()));
            for (int at = 2; at < arguments.length; at += 3) {
                offsets.put(
                    new TopicPartition(arguments[at], Integer.parseInt(arguments[at + 1])),
                    Long.parseLong(arguments[at + 2]));
            }
            checkpoint.write(offsets);
            return;
        }
        checkpoint.read().forEach((partition, offset) ->
            System.out.println(partition.topic() + " " + partition.partition() + " " + offset));
    }
}
