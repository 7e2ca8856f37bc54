# Records on Ruby's heap: `ruby_work.rb RECORDS VISITS`; prints what was seen. Small objects, strings, arrays
# and hashes that the collector walks again and again; visits in an order that no prefetch foresees.
WORDS = %w[alpha beta gamma delta orders customer street invoice pending shipped].freeze

count, visits = ARGV.map(&:to_i)
$seed = 1
def draw(bound)
  $seed = $seed * 16_807 % 2_147_483_647
  $seed % bound
end

records = {}
count.times do |number|
  tags = Array.new(3) { |at| WORDS[(number * 7 + at) % 10] + "-tag" }
  name = "#{WORDS[number % 10]} #{draw(1_000_000)} of the long street"
  records["customer/#{number}"] = { id: number, name: name, tags: tags, lines: [number * 3, number % 17] }
end

seen = 0
visits.times do |visit|
  record = records["customer/#{draw(count)}"]
  seen = (seen * 31 + record[:name].sum + record[:lines][1]) % (1 << 61)
  record[:lines][1] += 1
  record[:tags][visit % 3] = "#{WORDS[visit % 10]} again"
end

total = records.each_value.sum { |record| record[:lines][1] + record[:tags].sum(&:size) }
first = records.values.min_by(5) { |record| [record[:name], record[:id]] }
puts "#{records.size} records, #{seen}, #{total}"
puts(first.map { |record| record[:name] })
