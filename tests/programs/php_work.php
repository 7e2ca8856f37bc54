<?php
// Records on PHP's heap: `php_work.php RECORDS VISITS`; prints what was seen. Zend's allocator takes chunks
// of 2 MiB by mmap.
ini_set('memory_limit', '-1');
const WORDS = [
    'alpha', 'beta', 'gamma', 'delta', 'orders', 'customer', 'street', 'invoice', 'pending', 'shipped',
];

[, $count, $visits] = array_map('intval', $argv);
$seed = 1;
function draw(int $bound): int
{
    global $seed;
    $seed = $seed * 16807 % 2147483647;
    return $seed % $bound;
}

$records = [];
for ($number = 0; $number < $count; $number++) {
    $tags = [];
    for ($at = 0; $at < 3; $at++) {
        $tags[] = WORDS[($number * 7 + $at) % 10] . '-tag';
    }
    $records["customer/$number"] = [
        'id' => $number, 'name' => WORDS[$number % 10] . ' ' . draw(1000000) . ' of the long street',
        'tags' => $tags, 'lines' => [$number * 3, $number % 17],
    ];
}

$seen = 0;
for ($visit = 0; $visit < $visits; $visit++) {
    $key = 'customer/' . draw($count);
    $seen = ($seen * 31 + crc32($records[$key]['name']) + $records[$key]['lines'][1]) % 1000000007;
    $records[$key]['lines'][1]++;
    $records[$key]['tags'][$visit % 3] = WORDS[$visit % 10] . ' again';
}

$total = 0;
$hash = hash_init('sha256');
foreach ($records as $record) {
    $total += $record['lines'][1] + strlen(implode($record['tags']));
    hash_update($hash, $record['name']);
}
echo "$count records, $seen, $total, ", hash_final($hash), "\n";
