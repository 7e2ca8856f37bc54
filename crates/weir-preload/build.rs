//! Link options of the shim: its constructor runs before those of every other library, its own references to
//! the symbols that it exports are bound to itself, and what jemalloc asks of `mmap` comes to `jemalloc.rs`.
//! And the few lines of C.

fn main() {
    for arg in
        ["-Wl,-z,initfirst", "-Wl,-Bsymbolic", "-Wl,-z,nodelete", "-Wl,--wrap=mmap", "-Wl,--wrap=dlsym"]
    {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    cc::Build::new()
        .file("src/inline/exec.c")
        .flag("-std=gnu11")
        .define("_GNU_SOURCE", None)
        .compile("weir_exec");
    println!("cargo:rerun-if-changed=src/inline/exec.c");
    println!("cargo:rerun-if-changed=build.rs");
}
