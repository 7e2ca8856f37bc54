# What the packages have in common; read by deb.sh and wheel.sh from the root of the repository.
: "${BUILD:=target/release}" "${OUT:=target/packages}"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

# Times in packages are that of the last commit, or of the sources: what is built again has the same bytes.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.lock)}"
export BUILD SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC

# The oldest glibc that has all that the binary and the libraries ask for: "2.34".
glibc=$(objdump -T "$BUILD/weir" "$BUILD/libweir_preload.so" "$BUILD/libweir_c.so" |
    grep -o 'GLIBC_2\.[0-9.]*' | sort -uV |
    tail -n 1 | sed 's/GLIBC_//')

# A tree in which the package is put together.
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
umask 022
tree=$(mktemp -d)
chmod 755 "$tree"
trap 'rm -rf "$tree"' EXIT
