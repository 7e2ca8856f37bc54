// Records on V8's heap: `node_work.js RECORDS VISITS`; prints what was seen. Compiled code, several threads,
// buffers outside.
'use strict';
const { createHash } = require('crypto');
const WORDS = 'alpha beta gamma delta orders customer street invoice pending shipped'.split(' ');
const [count, visits] = process.argv.slice(2).map(Number);
let seed = 1;
const draw = (bound) => (seed = (seed * 16807) % 2147483647) % bound;

const records = new Map();
for (let number = 0; number < count; number++) {
  const tags = [0, 1, 2].map((at) => WORDS[(number * 7 + at) % 10] + '-tag');
  records.set('customer/' + number, {
    id: number, name: `${WORDS[number % 10]} ${draw(1000000)} of the long street`, tags,
    lines: [number * 3, number % 17], packed: number % 8 === 0 ? Buffer.alloc(512, `${number} `) : null,
  });
}

let seen = 0;
for (let visit = 0; visit < visits; visit++) {
  const record = records.get('customer/' + draw(count));
  seen = (seen * 31 + record.name.charCodeAt(8) + record.lines[1]) % 1000000007;
  record.lines[1]++;
  record.tags[visit % 3] = WORDS[visit % 10] + ' again';
}

const hash = createHash('sha256');
let total = 0;
for (const record of records.values()) {
  total += record.lines[1] + record.tags.join('').length;
  hash.update(record.name);
  if (record.packed) hash.update(record.packed);
}
console.log(`${count} records, ${seen}, ${total}, ${hash.digest('hex')}`);
