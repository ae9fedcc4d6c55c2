//! The host's hardware, detected once and without loading a driver.

use std::path::Path;
use std::process::Command;

/// The hardware of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// The number of CUDA devices that a worker could use.
    pub cuda_devices: u32,
    /// The number of CPU cores that this process may use.
    pub cores: u32,
    /// Available host memory in bytes, within the container's limits.
    pub free_memory: u64,
}

/// One CUDA device, for `--explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// The product name.
    pub name: String,
    /// Device memory in bytes.
    pub memory: u64,
}

impl Hardware {
    /// Detects the host's hardware.
    pub fn detect() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            cuda_devices: visible_devices(),
            cores: u32::try_from(cores).unwrap_or(1),
            free_memory: free_memory(),
        }
    }
}

/// Returns the number of devices that the driver lists, restricted by CUDA_VISIBLE_DEVICES.
fn visible_devices() -> u32 {
    let present = std::fs::read_dir("/dev").map_or(0, |entries| {
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .filter(|name| is_device(&name.to_string_lossy()))
            .count()
    });
    let visible = std::env::var("CUDA_VISIBLE_DEVICES")
        .ok()
        .filter(|_| present > 0);
    let count = visible.map_or(present, |list| {
        list.split(',')
            .map(str::trim)
            .take_while(|id| !id.is_empty() && *id != "-1")
            .count()
    });
    u32::try_from(count).unwrap_or(0)
}

fn is_device(name: &str) -> bool {
    name.strip_prefix("nvidia")
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn free_memory() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let host = meminfo.lines().find_map(|line| {
        let kib = line
            .strip_prefix("MemAvailable:")?
            .trim()
            .strip_suffix("kB")?;
        kib.trim().parse::<u64>().ok().map(|kib| kib << 10)
    });
    let host = host.unwrap_or(0);
    container_room(Path::new("/sys/fs/cgroup")).map_or(host, |room| room.min(host))
}

fn container_room(group: &Path) -> Option<u64> {
    let read = |name: &str| -> Option<u64> {
        std::fs::read_to_string(group.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}

/// Returns the names and sizes of the devices; empty if nvidia-smi is missing.
pub fn cuda_devices() -> Vec<CudaDevice> {
    let query = [
        "--query-gpu=name,memory.total",
        "--format=csv,noheader,nounits",
    ];
    let Ok(output) = Command::new("nvidia-smi").args(query).output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(cuda_device)
        .collect()
}

fn cuda_device(line: &str) -> Option<CudaDevice> {
    let (name, mib) = line.rsplit_once(',')?;
    let mib: u64 = mib.trim().parse().ok()?;
    Some(CudaDevice {
        name: name.trim().to_owned(),
        memory: mib << 20,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbered_nodes_are_devices() {
        assert!(is_device("nvidia0") && is_device("nvidia12"));
        assert!(!is_device("nvidia") && !is_device("nvidiactl") && !is_device("nvidia-uvm"));
    }

    #[test]
    fn device_lines_are_read() {
        let device = cuda_device("NVIDIA H200, 143771").unwrap();
        assert_eq!(
            (device.name.as_str(), device.memory),
            ("NVIDIA H200", 143_771 << 20)
        );
        assert_eq!(cuda_device("no devices were found"), None);
    }
}
