//! The table of built files, and the folders that collect them under fixed names.

pub(crate) struct Item {
    pub package: &'static str,
    pub folder: &'static str,
    pub target: &'static str,
    /// Its name in the folder that collects it.
    pub name: &'static str,
}

/// A folder of built files, and how they are built.
pub(crate) struct Collection {
    /// The folder below cargo's target folder.
    pub folder: &'static str,
    pub profile: &'static str,
    /// The meaning of the profile and the time of the first build on two cores, for the terminal.
    pub announcement: &'static str,
    /// The names of its files in [`ITEMS`]; `None` for all.
    files: Option<&'static [&'static str]>,
    /// Packages that are built only because their features affect the others.
    pub features_of: &'static [&'static str],
    /// The names of its C programs; `None` for all.
    pub programs: Option<&'static [&'static str]>,
}

/// Files that the demo and the README's commands run.
pub(crate) const DEMO: Collection = Collection {
    folder: "demo",
    profile: "dev",
    announcement: "unoptimized; the first build takes about two minutes",
    files: Some(&[
        "libcgpu.so",
        "cgpu",
        "cgpu-monitor",
        "cgpu-demo",
        "sim/libcuda.so.1",
        "sim/libnvidia-ml.so.1",
    ]),
    features_of: &[],
    programs: Some(&["alloc_fill", "launch_loop", "worker"]),
};

/// Files that are shipped and measured.
pub(crate) const DIST: Collection = Collection {
    folder: "dist",
    profile: "release",
    announcement: "optimized as a whole; the first build takes about eight minutes",
    files: None,
    features_of: &[],
    programs: None,
};

/// Files that the end-to-end tests run.
pub(crate) const TEST: Collection = Collection {
    folder: "test",
    profile: "test",
    announcement: "unoptimized; the first build takes about three minutes",
    files: None,
    features_of: &[],
    programs: None,
};

/// Files that the end-to-end tests examine as shipped: instructions, exported symbols.
pub(crate) const TEST_RELEASE: Collection = Collection {
    folder: "test/release",
    profile: "release",
    announcement: "the shim as it is shipped; the first build takes about a minute",
    files: Some(&["libcgpu.so", "null/libcuda.so.1", "null/libnvidia-ml.so.1"]),
    // Cargo unifies features, so packages built beside the shim change its instructions by some
    // percent.
    features_of: &["cgpu-cli"],
    programs: Some(&["among", "calls"]),
};

impl Collection {
    pub(crate) fn items(&self) -> impl Iterator<Item = &'static Item> {
        let files = self.files;
        ITEMS.iter().filter(move |item| files.is_none_or(|files| files.contains(&item.name)))
    }
}

/// All files that cargo builds. The C programs are collected in `programs/`.
pub(crate) const ITEMS: &[Item] = &[
    Item { package: "cgpu-shim", folder: "shim", target: "cgpu", name: "libcgpu.so" },
    Item { package: "cgpu-cli", folder: "cli", target: "cgpu", name: "cgpu" },
    Item {
        package: "cgpu-monitor",
        folder: "monitor",
        target: "cgpu-monitor",
        name: "cgpu-monitor",
    },
    Item {
        package: "cgpu-runtime",
        folder: "runtime",
        target: "cgpu-runtime",
        name: "cgpu-runtime",
    },
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
        package: "cgpu-dra-controller",
        folder: "kubernetes/dra/controller",
        target: "cgpu-dra-controller",
        name: "cgpu-dra-controller",
    },
    Item {
        package: "cgpu-dra-driver",
        folder: "kubernetes/dra/driver",
        target: "cgpu-dra-driver",
        name: "cgpu-dra-driver",
    },
    Item {
        package: "cgpu-kubernetes-inspect",
        folder: "kubernetes/inspect",
        target: "kubectl-inspect-gpushare",
        name: "kubectl-inspect-gpushare",
    },
    Item {
        package: "cgpu-sim-command",
        folder: "sim/command",
        target: "cgpu-sim",
        name: "cgpu-sim",
    },
    Item { package: "cgpu-bench", folder: "bench", target: "cgpu-demo", name: "cgpu-demo" },
    Item { package: "cgpu-bench", folder: "bench", target: "cgpu-bench", name: "cgpu-bench" },
    Item {
        package: "cgpu-kubernetes-tests",
        folder: "tests/kubernetes",
        target: "cgpu-lab",
        name: "cgpu-lab",
    },
    Item {
        package: "cgpu-kubernetes-tests",
        folder: "tests/kubernetes",
        target: "cgpu-extender-scale",
        name: "cgpu-extender-scale",
    },
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
        folder: "sim/libcuda",
        target: "cgpu_sim_libcuda",
        name: "sim/libcuda.so.1",
    },
    Item {
        package: "cgpu-sim-libnvidia-ml",
        folder: "sim/libnvidia-ml",
        target: "cgpu_sim_libnvidia_ml",
        name: "sim/libnvidia-ml.so.1",
    },
    Item {
        package: "cgpu-null-libcuda",
        folder: "sim/null-libcuda",
        target: "cgpu_null_libcuda",
        name: "null/libcuda.so.1",
    },
    Item {
        package: "cgpu-null-libnvidia-ml",
        folder: "sim/null-libnvidia-ml",
        target: "cgpu_null_libnvidia_ml",
        name: "null/libnvidia-ml.so.1",
    },
];

/// Second names of a file; the program checks under which name it was started.
pub(crate) const LINKS: &[(&str, &str)] =
    &[("cgpu-smi", "cgpu"), ("kubectl-inspect-cgpu", "kubectl-inspect-gpushare")];
