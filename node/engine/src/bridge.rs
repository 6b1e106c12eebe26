//! The C interface of `bridge/bridge.h`, word for word, and safe calls of it.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::NonNull;

use libloading::Library;

use crate::error::EngineError;

/// `SKEIN_BRIDGE_ABI`.
pub const ABI: u32 = 1;

/// Bytes kept for an error's text; OpenVINO's texts carry a stack of causes.
const ERROR_CAPACITY: usize = 4096;

#[repr(C)]
struct RawError {
    text: *mut c_char,
    capacity: usize,
}

#[repr(C)]
pub struct RawProperty {
    pub key: *const c_char,
    pub value: *const c_char,
}

#[repr(C)]
pub struct RawSpec {
    pub xml: *const c_char,
    pub weights: *const c_char,
    pub device: *const c_char,
    pub properties: *const RawProperty,
    pub property_count: usize,
    pub blocks: u64,
    pub block_slots: u32,
    pub layers: u32,
    pub first: u32,
    pub last: u32,
    pub hidden: u32,
    pub vocab: u32,
    pub sliding_windows: *const u32,
}

#[repr(C)]
pub struct RawStep {
    pub token_ids: *const i64,
    pub position_ids: *const i64,
    pub rows: usize,
    pub past_lens: *const i32,
    pub subsequence_begins: *const i32,
    pub sequences: usize,
    pub block_indices: *const i32,
    pub block_indices_begins: *const i32,
    pub max_context_len: i32,
    pub qq_bias: *const u8,
    pub qq_bias_size: usize,
    pub qq_bias_begins: *const i32,
    pub qq_bias_begins_size: usize,
    pub sampled_rows: *const i64,
    pub sampled: usize,
    pub moves: *const RawMove,
    pub move_count: usize,
}

#[repr(C)]
pub struct RawMove {
    pub from: u32,
    pub to: u32,
}

/// Never made in Rust; only pointers to it exist.
#[repr(C)]
pub struct RawRuntime([u8; 0]);

/// Never made in Rust; only pointers to it exist.
#[repr(C)]
pub struct RawStage([u8; 0]);

/// The functions of an opened bridge.
#[derive(Clone, Copy)]
pub struct Bridge {
    abi: unsafe extern "C" fn() -> u32,
    version: unsafe extern "C" fn() -> *const c_char,
    runtime_open: unsafe extern "C" fn(*mut *mut RawRuntime, *mut RawError) -> c_int,
    runtime_close: unsafe extern "C" fn(*mut RawRuntime),
    stage_load: unsafe extern "C" fn(
        *mut RawRuntime,
        *const RawSpec,
        *mut *mut RawStage,
        *mut RawError,
    ) -> c_int,
    stage_unload: unsafe extern "C" fn(*mut RawStage),
    stage_report: unsafe extern "C" fn(*const RawStage) -> *const c_char,
    stage_hidden_input:
        unsafe extern "C" fn(*mut RawStage, usize, *mut *mut f32, *mut RawError) -> c_int,
    stage_step: unsafe extern "C" fn(
        *mut RawStage,
        *const RawStep,
        *mut *const f32,
        *mut RawError,
    ) -> c_int,
}

impl Bridge {
    /// # Safety
    /// `library` was compiled from this crate's bridge folder.
    pub unsafe fn of(library: &'static Library) -> Result<Self, libloading::Error> {
        // SAFETY: the caller vouches for the types; the library stays open for ever.
        unsafe {
            Ok(Self {
                abi: *library.get(b"skein_bridge_abi")?,
                version: *library.get(b"skein_openvino_version")?,
                runtime_open: *library.get(b"skein_runtime_open")?,
                runtime_close: *library.get(b"skein_runtime_close")?,
                stage_load: *library.get(b"skein_stage_load")?,
                stage_unload: *library.get(b"skein_stage_unload")?,
                stage_report: *library.get(b"skein_stage_report")?,
                stage_hidden_input: *library.get(b"skein_stage_hidden_input")?,
                stage_step: *library.get(b"skein_stage_step")?,
            })
        }
    }

    pub fn abi(&self) -> u32 {
        // SAFETY: takes nothing and returns a number.
        unsafe { (self.abi)() }
    }

    /// OpenVINO's version and build.
    pub fn version(&self) -> String {
        // SAFETY: returns a text that lives as long as the library, which is for ever.
        unsafe { text((self.version)()) }
    }
}

/// An `ov::Core`, closed when dropped.
pub struct RuntimeHandle {
    bridge: Bridge,
    pointer: NonNull<RawRuntime>,
}

// SAFETY: an `ov::Core` may be used from any thread, and from several at once.
unsafe impl Send for RuntimeHandle {}
// SAFETY: as above.
unsafe impl Sync for RuntimeHandle {}

impl RuntimeHandle {
    pub fn open(bridge: Bridge) -> Result<Self, EngineError> {
        let mut pointer = std::ptr::null_mut();
        ErrorText::new().call(|error| {
            // SAFETY: both pointers are valid for the call.
            unsafe { (bridge.runtime_open)(&mut pointer, error) }
        })?;
        let pointer = NonNull::new(pointer).ok_or_else(nothing)?;
        Ok(Self { bridge, pointer })
    }

    pub fn load(&self, spec: &RawSpec) -> Result<StageHandle, EngineError> {
        let mut pointer = std::ptr::null_mut();
        let mut error = ErrorText::new();
        error.call(|error| {
            // SAFETY: the runtime is open, and `spec` points to data that the caller holds.
            unsafe { (self.bridge.stage_load)(self.pointer.as_ptr(), spec, &mut pointer, error) }
        })?;
        let pointer = NonNull::new(pointer).ok_or_else(nothing)?;
        Ok(StageHandle {
            bridge: self.bridge,
            pointer,
            error,
        })
    }
}

impl Drop for RuntimeHandle {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once.
        unsafe { (self.bridge.runtime_close)(self.pointer.as_ptr()) }
    }
}

/// A loaded stage, unloaded when dropped.
pub struct StageHandle {
    bridge: Bridge,
    pointer: NonNull<RawStage>,
    error: ErrorText,
}

// SAFETY: a stage is used by one thread at a time, which `&mut` ensures, but not always the same.
unsafe impl Send for StageHandle {}

impl StageHandle {
    pub fn report(&self) -> String {
        // SAFETY: the text lives as long as the stage and is copied here.
        unsafe { text((self.bridge.stage_report)(self.pointer.as_ptr())) }
    }

    /// `len` values that the caller fills.
    pub fn hidden_input(&mut self, rows: usize, len: usize) -> Result<&mut [f32], EngineError> {
        let mut data = std::ptr::null_mut();
        let Self {
            bridge,
            pointer,
            error,
        } = self;
        error.call(|error| {
            // SAFETY: the stage is loaded; both pointers are valid for the call.
            unsafe { (bridge.stage_hidden_input)(pointer.as_ptr(), rows, &mut data, error) }
        })?;
        // SAFETY: the bridge returned `[rows, hidden]` values, which is `len` (the caller multiplied
        // the same numbers), valid until the next step, which needs `&mut self`.
        Ok(unsafe { slice_mut(data, len) })
    }

    /// # Safety
    /// The lists of `step` have the lengths that `bridge.h` asks for, every index is in range, and
    /// the output of such a step has `len` values.
    pub unsafe fn step(&mut self, step: &RawStep, len: usize) -> Result<&[f32], EngineError> {
        let mut output = std::ptr::null();
        let Self {
            bridge,
            pointer,
            error,
        } = self;
        error.call(|error| {
            // SAFETY: the caller vouches for `step`; the stage is loaded.
            unsafe { (bridge.stage_step)(pointer.as_ptr(), step, &mut output, error) }
        })?;
        if len == 0 || output.is_null() {
            return Ok(&[]);
        }
        // SAFETY: the bridge checked that the output has at least `len` values; it is valid until the
        // next step, which needs `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(output, len) })
    }
}

impl Drop for StageHandle {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, unloaded once.
        unsafe { (self.bridge.stage_unload)(self.pointer.as_ptr()) }
    }
}

/// Where the bridge writes why something failed; kept, so that a step allocates nothing.
struct ErrorText(Box<[u8; ERROR_CAPACITY]>);

impl ErrorText {
    fn new() -> Self {
        Self(Box::new([0; ERROR_CAPACITY]))
    }

    fn call(&mut self, body: impl FnOnce(*mut RawError) -> c_int) -> Result<(), EngineError> {
        self.0[0] = 0;
        let mut raw = RawError {
            text: self.0.as_mut_ptr().cast(),
            capacity: ERROR_CAPACITY,
        };
        if body(&mut raw) == 0 {
            return Ok(());
        }
        let text = CStr::from_bytes_until_nul(&self.0[..]).unwrap_or_default();
        Err(EngineError::OpenVino(one_line(&text.to_string_lossy())))
    }
}

/// OpenVINO's exceptions name the source line that threw, then say why, over several lines.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let (places, words): (Vec<&str>, Vec<&str>) =
        lines.partition(|line| line.starts_with("Exception from ") && line.ends_with(':'));
    if words.is_empty() {
        places.join(" ")
    } else {
        words.join(" ")
    }
}

fn nothing() -> EngineError {
    EngineError::OpenVino("the bridge returned nothing".into())
}

/// # Safety
/// `pointer` is null or a null-terminated text.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(pointer) }
        .to_string_lossy()
        .into_owned()
}

/// # Safety
/// `data` is null or points to `len` values that nobody else uses for `'a`.
unsafe fn slice_mut<'a>(data: *mut f32, len: usize) -> &'a mut [f32] {
    if data.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: the caller vouches for it.
    unsafe { std::slice::from_raw_parts_mut(data, len) }
}

/// A text for C; one with a zero byte inside is refused.
pub fn c_text(text: &str) -> Result<CString, EngineError> {
    CString::new(text).map_err(|_| EngineError::Spec(format!("{text:?} has a zero byte inside")))
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn an_exceptions_text_becomes_one_line_without_source_places() {
        let text =
            "Exception from src/inference/src/cpp/core.cpp:97:\n\nCheck failed:\nno such file\n";
        assert_eq!(one_line(text), "Check failed: no such file");
        assert_eq!(one_line("plain"), "plain");
        assert_eq!(
            one_line("Exception from a.cpp:1:\n"),
            "Exception from a.cpp:1:"
        );
    }
}
