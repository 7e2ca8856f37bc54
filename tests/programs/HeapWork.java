/** Rows of numbers on a Java heap, filled, half of them replaced, and read twice: HeapWork.java MIB. Prints a sum of all that was read. */
public class HeapWork {
    static final int ROW_WORDS = 32 * 1024 - 16;

    static long[] row(long seed) {
        long[] words = new long[ROW_WORDS];
        for (int j = 0; j < words.length; j++) words[j] = j % 16 == 0 ? seed * 0x9e3779b97f4a7c15L + j : 7;
        return words;
    }

    public static void main(String[] arguments) {
        int rows = Integer.parseInt(arguments[0]) * 4;
        long[][] heap = new long[rows][];
        for (int i = 0; i < rows; i++) heap[i] = row(i);
        for (int i = 0; i < rows; i += 2) heap[i] = row(i + 1000); // the collector has something to collect
        long sum = 0;
        for (int round = 1; round <= 2; round++)
            for (int i = 0; i < rows; i++)
                for (int j = 0; j < ROW_WORDS; j += 16) sum = sum * 31 + heap[i][j] * round;
        System.out.println(rows + " rows, " + sum);
    }
}
