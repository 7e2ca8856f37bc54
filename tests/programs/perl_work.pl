# Records on Perl's heap: `perl_work.pl RECORDS VISITS`; prints what was seen. Scalars of a few dozen bytes,
# nothing is large.
use strict;
use warnings;

my @words = qw(alpha beta gamma delta orders customer street invoice pending shipped);
my ($count, $visits) = @ARGV;
my $seed = 1;
sub draw { $seed = $seed * 16807 % 2147483647; return $seed % $_[0]; }

my %records;
for my $number (0 .. $count - 1) {
    my @tags = map { $words[($number * 7 + $_) % 10] . "-tag" } 0 .. 2;
    $records{"customer/$number"} = {
        id => $number, name => "$words[$number % 10] " . draw(1000000) . " of the long street",
        tags => \@tags, lines => [$number * 3, $number % 17],
    };
}

my $seen = 0;
for my $visit (1 .. $visits) {
    my $record = $records{"customer/" . draw($count)};
    $seen = ($seen * 31 + unpack("%32C*", $record->{name}) + $record->{lines}[1]) % 1000000007;
    $record->{lines}[1]++;
    $record->{tags}[$visit % 3] = "$words[$visit % 10] again";
}

my $total = 0;
my @names;
for my $record (values %records) {
    $total += $record->{lines}[1] + length join "", @{ $record->{tags} };
    push @names, $record->{name} if $record->{id} % 1000 == 0;
}
print "$count records, $seen, $total\n";
print "$_\n" for (sort @names)[0 .. 4];
