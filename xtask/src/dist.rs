//! `target/dist`: what is built, and the fixed names under which scripts find it.

/// One built file.
pub(crate) struct Item {
    /// The cargo package.
    pub package: &'static str,
    /// The package's folder.
    pub folder: &'static str,
    /// The cargo target.
    pub target: &'static str,
    /// Its name in the folder `dist`.
    pub name: &'static str,
}

/// Everything that cargo builds for `dist`. The C programs come beside it, in `programs/`.
pub(crate) const ITEMS: &[Item] = &[
    Item { package: "cgpu-shim", folder: "shim", target: "cgpu", name: "libcgpu.so" },
    Item { package: "cgpu-cli", folder: "cli", target: "cgpu", name: "cgpu" },
    Item { package: "cgpu-monitor", folder: "monitor", target: "cgpu-monitor", name: "cgpu-monitor" },
    Item { package: "cgpu-runtime", folder: "runtime", target: "cgpu-runtime", name: "cgpu-runtime" },
    Item {
        package: "cgpu-scheduler-extender",
        folder: "kubernetes/extender",
        target: "cgpu-scheduler-extender",
        name: "cgpu-scheduler-extender",
    },
    Item {
        package: "cgpu-device-plugin",
        folder: "kubernetes/plugin",
        target: "cgpu-device-plugin",
        name: "cgpu-device-plugin",
    },
    Item {
        package: "cgpu-kubernetes-inspect",
        folder: "kubernetes/inspect",
        target: "kubectl-inspect-gpushare",
        name: "kubectl-inspect-gpushare",
    },
    Item { package: "cgpu-sim-command", folder: "tests/cuda/cgpu-sim", target: "cgpu-sim", name: "cgpu-sim" },
    Item { package: "cgpu-bench", folder: "bench", target: "cgpu-demo", name: "cgpu-demo" },
    Item { package: "cgpu-bench", folder: "bench", target: "cgpu-bench", name: "cgpu-bench" },
    Item {
        package: "cgpu-differential",
        folder: "tests/differential",
        target: "cgpu-differential",
        name: "cgpu-differential",
    },
    Item {
        package: "cgpu-differential",
        folder: "tests/differential",
        target: "cgpu-actor",
        name: "cgpu-actor",
    },
    Item {
        package: "cgpu-sim-libcuda",
        folder: "tests/cuda/libcuda",
        target: "cgpu_sim_libcuda",
        name: "sim/libcuda.so.1",
    },
    Item {
        package: "cgpu-sim-libnvidia-ml",
        folder: "tests/cuda/libnvidia-ml",
        target: "cgpu_sim_libnvidia_ml",
        name: "sim/libnvidia-ml.so.1",
    },
    Item {
        package: "cgpu-null-libcuda",
        folder: "tests/cuda/null-libcuda",
        target: "cgpu_null_libcuda",
        name: "null/libcuda.so.1",
    },
    Item {
        package: "cgpu-null-libnvidia-ml",
        folder: "tests/cuda/null-libnvidia-ml",
        target: "cgpu_null_libnvidia_ml",
        name: "null/libnvidia-ml.so.1",
    },
];

/// Second names: the same file under another name, which it looks at when it starts.
pub(crate) const LINKS: &[(&str, &str)] = &[("cgpu-smi", "cgpu")];
