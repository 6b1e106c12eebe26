//! Announces a fetch before it happens.
//!
//! Cargo shows a script's warnings when that script ends, and the engine's build script, which does
//! the fetch, depends on this crate and so runs later. Nothing is fetched here.

#[path = "src/lib.rs"]
#[allow(dead_code, unused_imports)]
mod provide;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in provide::place::VARIABLES {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let env = provide::Env::of_process();
    // Whatever is wrong is said by the script that needs the runtime.
    let (Ok(None), Ok(announcement), Ok(entry)) = (
        provide::locate_openvino(&env),
        provide::openvino::announcement(&env),
        provide::openvino::cache_entry(&env),
    ) else {
        return;
    };
    // While it is absent this runs on every build, and once more when it has come: cargo repeats the
    // warnings of a script that did not run again, and this one must stop.
    println!("cargo::rerun-if-changed={}", entry.display());
    println!("cargo::warning={announcement}");
}
