//! Link options of the shim: its constructor runs before those of every other library, and its
//! own references to the symbols that it exports are bound to itself.

fn main() {
    for arg in ["-Wl,-z,initfirst", "-Wl,-Bsymbolic", "-Wl,-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
