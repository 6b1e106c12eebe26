//! Compiles the C++ bridge against OpenVINO, which is found or fetched first.
//!
//! The bridge ends up inside the binary, so no path of the build is baked into it: it has no
//! run-time search path and finds OpenVINO already opened by whoever opens it.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use skein_provide::openvino::library_name;
use skein_provide::{Env, find_openvino, place, platform};

const SOURCES: [&str; 5] = ["bridge", "cache", "graph", "report", "stage"];

/// What stopped the build, and what to do about it.
struct Failure {
    fact: String,
    hint: String,
}

impl Failure {
    fn new(fact: impl Display, hint: impl Display) -> Self {
        Self {
            fact: fact.to_string(),
            hint: hint.to_string(),
        }
    }
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=bridge");
    for name in place::VARIABLES.iter().chain(&["CXX", "CXXFLAGS"]) {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if let Err(Failure { fact, hint }) = build() {
        // These fail the build; a status of ours would make cargo print all that is above as well.
        println!("cargo::error={fact}");
        println!("cargo::error=hint: {hint}");
    }
}

fn build() -> Result<(), Failure> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let compiler = compiler(&out)?;
    let refused = |error: skein_provide::ProvideError| Failure::new(&error, error.hint());
    let env = Env::of_process();
    if env.openvino_dir.is_none() {
        platform::check("OpenVINO 2026.4.1").map_err(refused)?;
    }
    // Said by this crate's dependency, whose build script ends before this one starts.
    let openvino = find_openvino(&env, &mut |_| {}).map_err(refused)?;
    let include = openvino.include_dir.as_deref().ok_or_else(|| {
        Failure::new(
            format!(
                "the OpenVINO at {} has no C++ headers",
                openvino.libs_dir.display()
            ),
            "set OPENVINO_DIR to a wheel's openvino/ folder or an archive's runtime/ folder",
        )
    })?;
    println!("cargo::rerun-if-changed={}", openvino.library().display());

    let objects = compile(&compiler, include, &out)?;
    link(
        &compiler,
        &objects,
        &openvino.libs_dir,
        &out.join("bridge.bin"),
    )
}

/// A compiler that is there and knows C++17.
fn compiler(out: &Path) -> Result<cc::Tool, Failure> {
    const HINT: &str = "install a C++17 compiler (Debian, Ubuntu: apt install g++; Fedora: dnf \
                        install gcc-c++), or set CXX to one";
    let compiler = cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .debug(false)
        .pic(true)
        .warnings(false)
        .cargo_metadata(false)
        .cargo_warnings(false)
        .out_dir(out)
        .host(&variable("HOST")?)
        .target(&variable("TARGET")?)
        .try_get_compiler()
        .map_err(|_| Failure::new("no C++ compiler was found", HINT))?;
    let probe = out.join("probe.cpp");
    let path = probe.display();
    std::fs::write(
        &probe,
        "#include <optional>\n#include <string_view>\n#if __cplusplus < 201703L && !defined(_MSC_VER)\n\
         #error old\n#endif\nint main() { return std::optional<int>(0).value(); }\n",
    )
    .map_err(|error| Failure::new(format!("{path} cannot be written: {error}"), "make room on its disk"))?;
    let name = compiler.path().display();
    let mut command = compiler.to_command();
    command
        .current_dir(out)
        .arg(if compiler.is_like_msvc() { "/c" } else { "-c" })
        .arg(&probe);
    match command.stdin(Stdio::null()).output() {
        Err(_) => Err(Failure::new(
            format!("the C++ compiler {name} was not found"),
            HINT,
        )),
        Ok(output) if !output.status.success() => Err(Failure::new(
            format!("the C++ compiler {name} does not compile C++17"),
            HINT,
        )),
        Ok(_) => Ok(compiler),
    }
}

/// Compiles the sources, all at once.
fn compile(compiler: &cc::Tool, include: &Path, out: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut running: Vec<(PathBuf, Child)> = Vec::new();
    for source in SOURCES {
        let object = out.join(source).with_extension("o");
        let mut command = compiler.to_command();
        if compiler.is_like_msvc() {
            command.args(["/c", "/EHsc"]).arg("/I").arg(include);
            command.arg(format!("/Fo{}", object.display()));
        } else {
            command
                .args(["-c", "-fvisibility=hidden", "-isystem"])
                .arg(include)
                .arg("-o")
                .arg(&object);
        }
        command.arg(Path::new("bridge").join(source).with_extension("cpp"));
        running.push((object, start(&mut command)?));
    }
    running
        .into_iter()
        .map(|(object, child)| finish(child).map(|()| object))
        .collect()
}

fn link(
    compiler: &cc::Tool,
    objects: &[PathBuf],
    libs: &Path,
    bridge: &Path,
) -> Result<(), Failure> {
    let mut command = compiler.to_command();
    command.args(objects);
    if compiler.is_like_msvc() {
        command
            .arg("/LD")
            .arg(format!("/Fe{}", bridge.display()))
            .arg(libs.join("openvino.lib"));
    } else {
        command.arg("-shared").arg("-o").arg(bridge);
        if cfg!(target_os = "macos") {
            command.arg(libs.join(library_name("openvino")));
        } else {
            command
                .arg("-L")
                .arg(libs)
                .arg(format!("-l:{}", library_name("openvino")));
        }
    }
    finish(start(&mut command)?)
}

fn start(command: &mut Command) -> Result<Child, Failure> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            Failure::new(
                format!("the C++ compiler did not start: {error}"),
                "see CXX",
            )
        })
}

fn finish(child: Child) -> Result<(), Failure> {
    let output = child.wait_with_output().map_err(|error| {
        Failure::new(format!("the C++ compiler was lost: {error}"), "try again")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said
        .lines()
        .find(|line| line.contains("error"))
        .or(said.lines().next());
    Err(Failure::new(
        format!(
            "the C++ bridge does not compile: {}",
            line.unwrap_or("the compiler said nothing")
        ),
        "use a newer compiler (g++ 12 is known to work), or set CXX to one",
    ))
}

fn variable(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_| Failure::new(format!("{name} is not set"), "build with cargo"))
}
