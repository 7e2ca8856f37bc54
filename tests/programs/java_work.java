// Records on the heap of a JVM: `java HeapWork RECORDS VISITS`; prints what was seen. Two threads allocate,
// garbage comes between.
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

final class HeapWork {
    static final String[] WORDS = {
        "alpha", "beta", "gamma", "delta", "orders", "customer", "street", "invoice", "pending", "shipped",
    };

    static final class Record {
        final int id;
        final String name;
        final List<String> tags = new ArrayList<>();
        long quantity;

        Record(int id, long drawn) {
            this.id = id;
            this.name = WORDS[id % 10] + " " + drawn + " of the long street";
            for (int at = 0; at < 3; at++) tags.add(WORDS[(int) ((id * 7L + at) % 10)] + "-tag");
            quantity = id % 17;
        }
    }

    /** One thread's records: built, visited in an unforeseeable order, added up. */
    static long work(int first, int count, int visits) {
        long seed = first + 1, seen = 0;
        Map<String, Record> records = new HashMap<>();
        for (int id = first; id < first + count; id++) {
            seed = seed * 16807 % 2147483647;
            records.put("customer/" + id, new Record(id, seed % 1000000));
        }
        for (int visit = 0; visit < visits; visit++) {
            seed = seed * 16807 % 2147483647;
            Record record = records.get("customer/" + (first + seed % count));
            seen = seen * 31 + record.name.hashCode() + record.quantity++;
            record.tags.set(visit % 3, WORDS[visit % 10] + " again");
        }
        for (int id = first; id < first + count; id++) {
            Record record = records.get("customer/" + id);
            seen = seen * 31 + record.quantity + record.tags.hashCode() + record.id;
        }
        return seen;
    }

    public static void main(String[] args) throws InterruptedException {
        int count = Integer.parseInt(args[0]) / 2, visits = Integer.parseInt(args[1]) / 2;
        long[] seen = new long[2];
        Thread other = new Thread(() -> seen[1] = work(count, count, visits));
        other.start();
        seen[0] = work(0, count, visits);
        other.join();
        System.out.println(2 * count + " records, " + seen[0] + ", " + seen[1]);
    }
}
