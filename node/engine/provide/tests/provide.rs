//! Finding and fetching, with a script in the place of python3.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use skein_provide::fetch::{self, Package};
use skein_provide::openvino::{cache_entry, library_name};
use skein_provide::{Env, ProvideError, Source, find_openvino, locate_openvino};
use tempfile::TempDir;

/// A folder with a cache and a `python3` that runs `script`.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new(script: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let python = folder.path().join("python3");
        fs::write(&python, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn env(&self) -> Env {
        Env {
            openvino_dir: None,
            cache: Some(self.path("cache")),
            python: self.path("python3").into(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Everything in the cache but the lock.
    fn cached(&self) -> Vec<String> {
        let Ok(items) = fs::read_dir(self.path("cache")) else {
            return Vec::new();
        };
        let names = items.map(|item| item.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != ".lock").collect();
        names.sort();
        names
    }
}

const PACKAGE: Package = Package {
    what: "A thing",
    requirement: "thing==1",
    options: &["--platform", "any"],
    wheel_bytes: 2_000_000,
    wheel_sha256: Some("2689367b205c16ce32ed4200942b8b8b1e262dfc70d9bc9fbc77c49699a4f1df"),
    keep: &["thing/"],
    by_hand: "bring one",
};

/// `pip download` writes a wheel with the content `ok`, unpacking makes a file; each run counts.
const FETCHES: &str = r#"
[ "$PIP_REQUIRE_VIRTUALENV" = 0 ] || [ "$1" = -c ] || exit 9
echo "noise of pip" >&2
if [ "$1" = -m ]; then
  echo "$@" >> "$0.runs"
  while [ $# -gt 0 ]; do [ "$1" = --dest ] && dest=$2; shift; done
  printf ok > "$dest/thing.whl"
else
  mkdir -p "$4/thing" && printf whole > "$4/thing/file"
fi
"#;

fn fetch(
    env: &Env,
    announce: &mut dyn FnMut(&fetch::Announcement),
) -> Result<PathBuf, ProvideError> {
    let accept = |folder: &Path| Ok(folder.join("thing"));
    fetch::entry(env, &PACKAGE, Path::new("thing"), announce, &accept)
}

#[test]
fn a_fetch_is_announced_first_and_leaves_the_entry_alone() {
    let place = Place::new(FETCHES);
    let mut said = Vec::new();
    let entry = fetch(&place.env(), &mut |announcement| {
        assert_eq!(place.cached(), Vec::<String>::new());
        said.push(announcement.to_string());
    });
    assert_eq!(
        fs::read_to_string(entry.unwrap().join("file")).unwrap(),
        "whole"
    );
    assert_eq!(place.cached(), ["thing"]);
    let cache = place.path("cache");
    assert_eq!(
        said,
        [format!(
            "A thing (2 MB) is fetched from PyPI into {}",
            cache.display()
        )]
    );
    // Again, and now nothing is fetched.
    fetch(&place.env(), &mut |_| panic!("announced")).unwrap();
    let runs = fs::read_to_string(place.path("python3.runs")).unwrap();
    assert_eq!(runs.lines().count(), 1);
    assert!(
        runs.contains("--only-binary=:all:") && runs.contains("--platform any"),
        "{runs}"
    );
}

#[test]
fn two_fetches_at_once_fetch_once() {
    let place = Place::new(&format!("sleep 0.2; {FETCHES}"));
    let announced = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                fetch(&place.env(), &mut |_| {
                    announced.fetch_add(1, Ordering::Relaxed);
                })
                .unwrap()
            });
        }
    });
    assert_eq!(announced.into_inner(), 1);
    assert_eq!(
        fs::read_to_string(place.path("python3.runs"))
            .unwrap()
            .lines()
            .count(),
        1
    );
}

#[test]
fn a_failed_fetch_says_why_in_one_line_and_leaves_nothing() {
    let cases: [(&str, &str, &str); 5] = [
        (
            "echo 'No module named pip' >&2; exit 1",
            "no pip",
            "ensurepip",
        ),
        (
            "echo 'ERROR: No matching distribution' >&2; exit 1",
            "could not be fetched",
            "bring one",
        ),
        ("exit 0", "could not be fetched", "bring one"),
        (
            &FETCHES.replace("printf ok", "printf bad"),
            "SHA-256",
            "index",
        ),
        (
            &FETCHES.replace("mkdir", "false"),
            "could not be unpacked",
            "disk",
        ),
    ];
    for (script, fact, hint) in cases {
        let place = Place::new(script);
        let error = fetch(&place.env(), &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains(fact), "{error}");
        assert!(error.hint().contains(hint), "{}", error.hint());
        assert!(
            !format!("{error}{}", error.hint()).contains('\n'),
            "{error}"
        );
        assert!(
            !error.to_string().contains("matching distribution"),
            "{error}"
        );
        assert_eq!(place.cached(), Vec::<String>::new());
    }
    let mut env = Place::new("").env();
    env.python = "/nowhere/python3".into();
    let error = fetch(&env, &mut |_| {}).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("python3 to fetch it with was not found"),
        "{error}"
    );
}

#[test]
fn what_a_killed_fetch_left_is_removed() {
    let place = Place::new(FETCHES);
    fs::create_dir_all(place.path("cache/.partial/wheel")).unwrap();
    fs::write(place.path("cache/.partial/wheel/half.whl"), "half").unwrap();
    fetch(&place.env(), &mut |_| {}).unwrap();
    assert_eq!(place.cached(), ["thing"]);
}

/// A folder with the files that make an OpenVINO of `version`, as a wheel or an archive lays it out.
fn fake_openvino(root: &Path, libs: &str, suffix: &str, version: Option<[u32; 3]>) {
    fs::create_dir_all(root.join(libs)).unwrap();
    for name in ["openvino", "openvino_c"] {
        let name = library_name(name).replace("2641", suffix);
        fs::write(root.join(libs).join(name), "").unwrap();
    }
    if let Some([major, minor, patch]) = version {
        fs::create_dir_all(root.join("include/openvino/core")).unwrap();
        fs::write(root.join("include/openvino/openvino.hpp"), "").unwrap();
        let header = format!(
            "#define OPENVINO_VERSION_MAJOR {major}\n#define OPENVINO_VERSION_MINOR {minor}\n#define \
             OPENVINO_VERSION_PATCH {patch}\n"
        );
        fs::write(root.join("include/openvino/core/version.hpp"), header).unwrap();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn openvino_dir_may_be_a_wheels_folder_or_an_archives() {
    let place = Place::new("exit 1");
    fake_openvino(&place.path("wheel"), "libs", "2641", Some([2026, 4, 1]));
    fake_openvino(
        &place.path("archive/runtime"),
        "lib/intel64",
        "2641",
        Some([2026, 4, 1]),
    );
    fake_openvino(&place.path("bare"), "libs", "2641", None);
    for (dir, libs) in [
        ("wheel", "wheel/libs"),
        ("archive/runtime", "archive/runtime/lib/intel64"),
        ("archive", "archive/runtime/lib/intel64"),
        ("bare", "bare/libs"),
    ] {
        let env = Env {
            openvino_dir: Some(place.path(dir)),
            ..place.env()
        };
        let found = locate_openvino(&env).unwrap().unwrap();
        assert_eq!(found.libs_dir, place.path(libs));
        assert_eq!(found.source, Source::Variable);
        assert_eq!(found.include_dir.is_some(), dir != "bare");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn another_version_in_openvino_dir_is_refused_by_name() {
    let place = Place::new("exit 1");
    fake_openvino(&place.path("old"), "libs", "2530", Some([2025, 3, 0]));
    fake_openvino(&place.path("bare"), "libs", "2530", None);
    fs::create_dir_all(place.path("empty")).unwrap();
    for dir in ["old", "bare"] {
        let env = Env {
            openvino_dir: Some(place.path(dir)),
            ..place.env()
        };
        let error = find_openvino(&env, &mut |_| panic!("fetched")).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("2025.3.0") && said.contains("2026.4.1"),
            "{said}"
        );
    }
    for dir in ["empty", "absent"] {
        let env = Env {
            openvino_dir: Some(place.path(dir)),
            ..place.env()
        };
        let error = find_openvino(&env, &mut |_| panic!("fetched")).unwrap_err();
        assert!(error.to_string().contains("holds no OpenVINO"), "{error}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn an_installed_package_of_the_right_version_comes_before_the_cache() {
    for (version, source) in [
        ("2026.4.1", Source::Python),
        ("2026.4.1-22982", Source::Python),
        ("2026.4.0", Source::Cache),
    ] {
        let place = Place::new(&format!(
            "echo {version}; echo \"$(dirname $0)/site/openvino\""
        ));
        fake_openvino(
            &place.path("site/openvino"),
            "libs",
            "2641",
            Some([2026, 4, 1]),
        );
        let env = place.env();
        fake_openvino(
            &cache_entry(&env).unwrap(),
            "libs",
            "2641",
            Some([2026, 4, 1]),
        );
        let found = find_openvino(&env, &mut |_| panic!("fetched")).unwrap();
        assert_eq!(found.source, source, "{version}");
    }
}

#[test]
fn a_default_model_with_a_flipped_byte_is_not_taken_for_it() {
    let place = Place::new("exit 1");
    let env = place.env();
    fs::create_dir_all(place.path("cache/models")).unwrap();
    let file = place.path("cache/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    fs::write(&file, vec![0; 100]).unwrap();
    assert_eq!(skein_provide::default_model_in_cache(&env).unwrap(), None);
    let error = skein_provide::default_model(&env, &mut |_| {}).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("SmolLM2-135M-Instruct (93 MB) could not"),
        "{error}"
    );
}
