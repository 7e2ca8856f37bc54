// Nodes of 48 bytes in std::map and std::unordered_map:
// `map_work map|rising|unordered|both NODES VISITS [WALKS]`; prints what was seen. Each node is a block of its
// own; a walk in order goes from node to node by pointers. The keys of `map` come in an order like chance, so
// that neighbours in the map lie anywhere in the heap; those of `rising` come in order. With WALKS it says on
// stderr how long each took.
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>

namespace {

std::uint64_t seed = 1;

std::uint64_t draw(std::uint64_t bound)
{
    seed = seed * 16807 % 2147483647;
    return seed * 7919 % bound;
}

double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Map>
std::uint64_t walk(const Map &map)
{
    std::uint64_t seen = 0;
    for (const auto &entry : map) {
        seen += entry.first ^ entry.second;
    }
    return seen;
}

template <class Map>
void work(const char *name, std::uint64_t factor, std::uint64_t nodes, std::uint64_t visits, int walks)
{
    Map map;
    double began = now();
    for (std::uint64_t number = 0; number < nodes; number++) {
        map.emplace(number * factor % (nodes * 4), number);
    }
    std::fprintf(stderr, "build %.3f\n", now() - began);
    std::uint64_t seen = 0;
    for (std::uint64_t visit = 0; visit < visits; visit++) {
        auto found = map.find(draw(nodes) * factor % (nodes * 4));
        if (found != map.end()) {
            seen = seen * 31 + found->second++;
        }
        if (visit % 8 == 0) {
            map.erase(draw(nodes) * factor % (nodes * 4));
            map.emplace(nodes * 4 + visit, visit);
        }
    }
    std::uint64_t walked = walk(map);
    for (int round = 0; round < walks; round++) {
        began = now();
        std::uint64_t again = walk(map);
        std::fprintf(stderr, "walk %.3f\n", now() - began);
        walked += again;
    }
    std::printf("%s: %zu nodes, %" PRIu64 ", %" PRIu64 "\n", name, map.size(), seen, walked);
}

} // namespace

int main(int count, char **words)
{
    if (count < 4) {
        return 2;
    }
    std::uint64_t nodes = std::strtoull(words[2], nullptr, 10), visits = std::strtoull(words[3], nullptr, 10);
    int walks = count > 4 ? std::atoi(words[4]) : 0;
    const std::uint64_t mixed = 2654435761u;
    bool rising = std::strcmp(words[1], "rising") == 0;
    if (std::strcmp(words[1], "unordered") != 0) {
        work<std::map<std::uint64_t, std::uint64_t>>("map", rising ? 1 : mixed, nodes, visits, walks);
    }
    if (std::strcmp(words[1], "unordered") == 0 || std::strcmp(words[1], "both") == 0) {
        work<std::unordered_map<std::uint64_t, std::uint64_t>>("unordered_map", mixed, nodes, visits, walks);
    }
    return 0;
}
