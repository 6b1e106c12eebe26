//! TAP devices: a network interface whose other end is a file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, ensure};
use rustix::fs::OFlags;
use rustix::ioctl::{Opcode, Updater, ioctl};

/// The device that makes TAP interfaces.
pub const CONTROL: &str = "/dev/net/tun";

/// Longest interface name, without the terminating zero.
const NAME_BYTES: usize = 15;

/// `TUNSETIFF`: `_IOW('T', 202, int)`, although what it takes is a `struct ifreq`.
const TUNSETIFF: Opcode = 0x4004_54ca;
/// Ethernet frames rather than IP packets.
const IFF_TAP: u16 = 0x0002;
/// Frames come without a header of the driver's own.
const IFF_NO_PI: u16 = 0x1000;

/// The kernel's `struct ifreq` as `TUNSETIFF` reads it: a name, flags, and the rest of a 24-byte
/// union.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES + 1],
    flags: u16,
    unused: [u8; 22],
}

/// Makes the interface `name` in the network namespace of the calling thread. One read or write of
/// the file is one frame; neither waits. The interface lives as long as the file.
pub fn create(name: &str) -> anyhow::Result<File> {
    ensure!(
        !name.is_empty() && name.len() <= NAME_BYTES && !name.contains('\0'),
        "`{name}` cannot name an interface"
    );
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(CONTROL)
        .with_context(|| format!("cannot open {CONTROL}"))?;
    let mut request = InterfaceRequest {
        name: [0; NAME_BYTES + 1],
        flags: IFF_TAP | IFF_NO_PI,
        unused: [0; 22],
    };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF is an opcode of this driver; it reads and writes a `struct ifreq` of 40
    // bytes, which `InterfaceRequest` is in size and layout, and the name in it ends with a zero.
    let attached = unsafe {
        let request = Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request);
        ioctl(&file, request)
    };
    attached.with_context(|| format!("cannot make the interface {name}"))?;
    Ok(file)
}
