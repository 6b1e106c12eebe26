//! What the bench asks of the operating system that no safe wrapper offers.

#[allow(
    unsafe_code,
    reason = "attaching to a TAP device is an ioctl without a safe wrapper"
)]
pub mod tap;
