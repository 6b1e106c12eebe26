//! The machine's memory and its processes, the same way on every system.

use sysinfo::{
    CGroupLimits, MemoryRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, RefreshKind,
    System,
};

/// Memory that the machine, or the container we are in, has; in bytes.
pub fn total_memory() -> u64 {
    let system = memory();
    limits(&system).map_or(system.total_memory(), |limits| limits.total_memory)
}

/// Memory that could be had without swapping, in bytes.
pub fn available_memory() -> u64 {
    let system = memory();
    let available = system.available_memory();
    limits(&system).map_or(available, |limits| limits.free_memory.min(available))
}

/// The container's limits, where it has less than the machine. Without a limit of its own, its
/// free memory says little: files that could be forgotten at once count as used there.
fn limits(system: &System) -> Option<CGroupLimits> {
    let limits = system.cgroup_limits()?;
    let smaller = limits.total_memory > 0 && limits.total_memory < system.total_memory();
    smaller.then_some(limits)
}

/// What a process has resident, in bytes; `None` where it is gone or hidden.
pub fn resident_bytes(process: u32) -> Option<u64> {
    let pid = Pid::from_u32(process);
    let mut system = System::new();
    system.refresh_processes_specifics(
        ProcessesToUpdate::Some(&[pid]),
        true,
        ProcessRefreshKind::nothing().with_memory().without_tasks(),
    );
    system.process(pid).map(sysinfo::Process::memory)
}

fn memory() -> System {
    System::new_with_specifics(
        RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_fits_into_this_machine() {
        let resident = resident_bytes(std::process::id()).unwrap();
        assert!(resident > 1 << 16, "{resident}");
        assert!(resident < total_memory());
        assert!(available_memory() <= total_memory());
    }

    #[test]
    fn a_process_that_is_not_there_has_nothing_resident() {
        assert_eq!(resident_bytes(u32::MAX - 1), None);
    }
}
