//! The C programs on the simulated GPU, each in its own processes under the real loader.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use cgpu_e2e::{ControlGroups, skip};
use cgpu_sim::journal::{Call, Line};
use cgpu_sim::timeline::SpanKind;
use cgpu_sim::trace::Trace;

use crate::setup::{Machine, number};

const MIB: f64 = 1048576.0;

#[test]
fn memory_can_be_filled_and_freed_completely() {
    let machine = Machine::new("fill", "A10:23028");
    let answer = machine.prints("alloc_fill 64M 3");
    assert_eq!(number(&answer, "error"), 2.0);
    assert_eq!(number(&answer, "free_after"), number(&answer, "free_before"));
    assert!(number(&answer, "granted") <= number(&answer, "free_before"));
    assert!(number(&answer, "granted") > number(&answer, "free_before") - 64.0 * MIB);
    // The driver reserves some memory, and the context takes some.
    assert!(number(&answer, "total") < 23028.0 * MIB);
    assert!(number(&answer, "free_before") < number(&answer, "total"));
}

#[test]
fn linked_program_resolves_its_symbols() {
    let answer = Machine::new("needed", "T4").prints("needed 256M");
    assert_eq!(number(&answer, "error"), 2.0);
    assert!(number(&answer, "granted") > 14000.0 * MIB);
}

#[test]
fn each_gpu_reports_its_own_size() {
    let answer = Machine::new("gpus", "A10:23028,T4:15109").prints("meminfo");
    let lines: Vec<&str> = answer.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("NVIDIA A10") && lines[1].contains("Tesla T4"), "{answer}");
    assert!(number(lines[0], "total") < 23028.0 * MIB && number(lines[0], "total") > 22000.0 * MIB);
    assert!(number(lines[1], "total") < 15109.0 * MIB && number(lines[1], "total") > 14000.0 * MIB);
}

#[test]
fn context_takes_memory() {
    let answer = Machine::new("ctx", "A10").prints("ctx");
    assert!(number(&answer, "context_bytes") >= 100.0 * MIB);
}

#[test]
fn managed_memory_without_shim_is_allocated() {
    let answer = Machine::new("managed", "A10").prints("managed granted");
    for route in
        ["cuMemAllocManaged", "cuModuleGetGlobal", "cuLibraryGetManaged", "cuLibraryGetGlobal"]
    {
        assert_eq!(number(&answer, route), 0.0, "{route}");
    }
}

#[test]
fn copies_preserve_bytes() {
    Machine::new("copies", "A10").prints("copies");
}

#[test]
fn batch_copies_follow_the_documentation() {
    Machine::new("batches", "A10").with("CGPU_SIM_DRIVER", "13020").prints("batches");
}

#[test]
fn streams_and_events_keep_order_and_time() {
    let answer = Machine::new("streams", "A10").prints("streams");
    assert!(number(&answer, "ten_ms") >= 9.9, "{answer}");
}

#[test]
fn small_kernels_run_concurrently_and_large_ones_in_turn() {
    let answer = Machine::new("sharing", "A10").prints("sharing");
    assert!((20.0..40.0).contains(&number(&answer, "small_ms")), "concurrent: {answer}");
    assert!(number(&answer, "large_ms") >= 40.0, "in turn: {answer}");
    assert_eq!(number(&answer, "code_bytes"), 2.0 * MIB);
    let eager =
        Machine::new("sharing-eager", "A10").with("CUDA_MODULE_LOADING", "EAGER").prints("sharing");
    assert_eq!(number(&eager, "code_bytes"), 0.0, "it was there before the launch");
}

#[test]
fn events_order_work_of_two_processes() {
    Machine::new("ipc-events", "A10").prints("ipc_events");
}

#[test]
fn memory_operations_write_and_wait() {
    Machine::new("memops", "A10").prints("memops");
}

#[test]
fn external_memory_and_semaphores_can_be_imported() {
    let machine = Machine::new("external", "A10");
    machine.prints("external");
    let left = std::fs::read_dir(machine.file("state").parent().unwrap()).unwrap();
    assert_eq!(left.count(), 1, "only the segment is left");
}

#[test]
fn processes_are_checkpointed_and_restored() {
    Machine::new("checkpoint", "A10,A10").with("CGPU_SIM_DRIVER", "13040").prints("checkpoint");
}

#[test]
fn accounting_reports_ended_processes() {
    let machine = Machine::new("accounting", "A10").with("CGPU_SIM_DRIVER", "13040");
    machine.prints("accounting");
}

#[test]
fn limits_of_a_control_group_are_set_and_shown() {
    let test = "limits_of_a_control_group_are_set_and_shown";
    let groups = match ControlGroups::mount("accounting") {
        Ok(groups) => groups,
        Err(reason) => return skip(test, "cgroups", &reason),
    };
    for wall in ["dmem", "misc"] {
        let folder = groups.create(wall);
        let machine = Machine::new(&format!("limits-{wall}"), "A10")
            .with("CGPU_SIM_DRIVER", "13040")
            .with("CGPU_SIM_WALL", wall)
            .inside(&folder);
        machine.prints(&format!("accounting {}", folder.display()));
    }
}

#[test]
fn limits_are_refused_with_the_drivers_codes() {
    let test = "limits_are_refused_with_the_drivers_codes";
    let groups = match ControlGroups::mount("codes") {
        Ok(groups) => groups,
        Err(reason) => return skip(test, "cgroups", &reason),
    };
    let root = groups.root().display().to_string();
    let (pod, leaf) = (groups.create("pod"), groups.create("pod/leaf"));
    let on = |name: &str, wall: &str| {
        let machine = Machine::new(name, "A10").with("CGPU_SIM_DRIVER", "13040");
        if wall.is_empty() { machine } else { machine.with("CGPU_SIM_WALL", wall) }
    };
    let codes = |machine: &Machine, arguments: &str| {
        let answer = machine.prints(&format!("memory_limits {arguments}"));
        (number(&answer, "set"), number(&answer, "get"))
    };
    let (done, invalid, not_supported, in_use) = (0.0, 2.0, 3.0, 19.0);
    let leaf_to = |limits: &str| format!("{} {limits}", leaf.display());

    assert_eq!(codes(&on("no-wall", ""), &leaf_to("0 500")), (not_supported, not_supported));
    let older = Machine::new("older-wall", "A10").with("CGPU_SIM_DRIVER", "13030");
    let older = older.with("CGPU_SIM_WALL", "dmem").prints(&format!("memory_limits {root}"));
    assert_eq!(number(&older, "functions"), 0.0);
    let cut = Machine::new("wall-instances", "A100:40960/mig=3g.20gb")
        .with("CGPU_SIM_DRIVER", "13040")
        .with("CGPU_SIM_WALL", "dmem");
    assert_eq!(codes(&cut, &leaf_to("0 500")), (not_supported, not_supported));

    let dmem = on("dmem", "dmem").inside(&leaf);
    assert_eq!(codes(&dmem, &format!("{root} 0 500")), (invalid, done));
    assert_eq!(codes(&dmem, &leaf_to("")[..leaf_to("").len() - 1]), (done, done));
    let misc = on("misc", "misc").inside(&leaf);
    assert_eq!(codes(&misc, &format!("{root} 0 500")), (invalid, not_supported));
    assert_eq!(codes(&misc, leaf_to("").trim()), (done, not_supported));
    for (machine, below) in [(&dmem, done), (&misc, in_use)] {
        assert_eq!(codes(machine, &leaf_to("0 500")), (done, done));
        let mut holder = machine.start("hold 64M");
        let mut ready = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        let answer = machine.prints(&format!("memory_limits {}", leaf_to("0 100")));
        assert_eq!(number(&answer, "set"), below, "{answer}");
        assert_eq!(number(&answer, "used"), 320.0 * MIB, "a context and its memory");
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success());
        // The parent's limit is the second one of its own.
        let pod = format!("{} 0 none", pod.display());
        assert_eq!(codes(machine, &pod).0, done);
    }
    assert_eq!(codes(&misc, &leaf_to("0 none")), (done, not_supported));
    assert_eq!(codes(&dmem, &leaf_to("0 none")), (done, done));
}

#[test]
fn sparse_arrays_have_memory_tile_by_tile() {
    Machine::new("sparse", "A10").prints("sparse");
}

#[test]
fn host_functions_are_called_in_stream_order() {
    Machine::new("host", "A10").prints("host_functions");
}

#[test]
fn forked_child_cannot_use_the_driver() {
    Machine::new("forked", "A10").prints("forked");
}

#[test]
fn invalid_calls_return_the_drivers_codes() {
    Machine::new("errors", "A10").prints("errors");
}

#[test]
fn lookup_depends_on_the_driver_version() {
    for version in ["11080", "12040", "13000"] {
        let machine =
            Machine::new(&format!("lookup-{version}"), "A10").with("CGPU_SIM_DRIVER", version);
        if version == "11080" {
            let output = machine.run("lookup");
            // The program requires the second version of the function, which CUDA 12.0 introduced.
            assert!(
                String::from_utf8_lossy(&output.stderr).contains("cuGetProcAddress_v2"),
                "{output:?}"
            );
            assert!(!output.status.success());
        } else {
            assert_eq!(
                number(&machine.prints("lookup"), "version"),
                version.parse::<f64>().unwrap()
            );
        }
    }
}

#[test]
fn per_thread_functions_use_per_thread_streams() {
    Machine::new("ptsz", "A10").prints("ptsz_names");
}

#[test]
fn launch_into_full_queue_blocks() {
    // The queue holds about 1000 of 3000 kernels of 1 ms each: the last launch returns after the
    // GPU has run the others.
    let answer = Machine::new("queue", "A10").prints("launch_loop spin_1ms --count 3000");
    assert!(number(&answer, "issued") >= 1.9, "{answer}");
    assert!(number(&answer, "seconds") >= 3.0, "{answer}");
}

#[test]
fn capture_follows_the_drivers_rules() {
    Machine::new("captures", "A10").prints("captures");
}

#[test]
fn graphs_are_built_updated_and_launched() {
    let answer = Machine::new("graphs", "A10").prints("graphs");
    let row = number(&answer, "row_ms");
    assert!(row >= 9.99, "{answer}");
    assert!(number(&answer, "four_ms") >= 4.0 * 9.99, "{answer}");
    assert!(number(&answer, "beside_ms") < row / 2.0, "{answer}");
}

#[test]
fn threads_capture_and_launch_graphs_independently() {
    let answer = Machine::new("graph-threads", "A10").prints("graph_threads 6 30");
    assert_eq!(number(&answer, "launches"), 6.0 * (30.0 * 3.0 + 10.0));
}

#[test]
fn other_allocators_allocate_and_free() {
    let answer = Machine::new("allocators", "A10").prints("allocators");
    assert_eq!(number(&answer, "pools"), 64.0 * MIB);
    assert_eq!(number(&answer, "physical"), 16.0 * MIB);
    assert_eq!(number(&answer, "old_functions"), 20.0 * MIB);
    assert_eq!(number(&answer, "variables"), 4.0 * MIB);
}

#[test]
fn shared_memory_is_freed_with_its_last_process() {
    let machine = Machine::new("share", "A10");
    machine.prints("share");
    let left = std::fs::read_dir(machine.file("state").parent().unwrap()).unwrap();
    assert_eq!(left.count(), 1, "only the segment is left");
}

#[test]
fn multicast_write_reaches_every_gpu() {
    let machine =
        Machine::new("multicast", "H100:8192,H200:8192,A100:8192").with("CGPU_SIM_DRIVER", "13010");
    machine.prints("multicast");
    let left = std::fs::read_dir(machine.file("state").parent().unwrap()).unwrap();
    assert_eq!(left.count(), 1, "only the segment is left");
    let output = Machine::new("no-switch", "A100:8192,A100:8192")
        .with("CGPU_SIM_DRIVER", "13010")
        .run("multicast");
    assert!(String::from_utf8_lossy(&output.stderr).contains("supported == 1"), "{output:?}");
}

#[test]
fn locality_domains_divide_a_gpu() {
    let run = |gpus: &str| {
        Machine::new(&format!("localities-{gpus}"), gpus)
            .with("CGPU_SIM_DRIVER", "13040")
            .prints("localities")
    };
    let answer = run("B200:8192");
    assert_eq!((number(&answer, "domains"), number(&answer, "multiprocessors")), (2.0, 70.0));
    assert!(
        (3.0 * 1024.0 * MIB..4.0 * 1024.0 * MIB).contains(&number(&answer, "room")),
        "{answer}"
    );
    let answer = run("A10");
    assert_eq!((number(&answer, "domains"), number(&answer, "multiprocessors")), (1.0, 72.0));
}

#[test]
fn endpoints_and_fabric_handles_share_memory() {
    let machine = Machine::new("endpoints", "B200:8192,B200:8192").with("CGPU_SIM_DRIVER", "13030");
    machine.prints("endpoints");
    let left = std::fs::read_dir(machine.file("state").parent().unwrap()).unwrap();
    assert_eq!(left.count(), 1, "only the segment is left");
    let output = Machine::new("no-endpoints", "H100:8192,H100:8192")
        .with("CGPU_SIM_DRIVER", "13030")
        .run("endpoints");
    assert!(String::from_utf8_lossy(&output.stderr).contains("number == 1"), "{output:?}");
}

#[test]
fn gpu_can_be_split_unevenly() {
    let run = |gpus: &str| {
        Machine::new(&format!("uneven-{gpus}"), gpus)
            .with("CGPU_SIM_DRIVER", "13040")
            .prints("uneven")
    };
    assert_eq!(number(&run("A10"), "rest"), 36.0);
    let answer = run("B200:8192");
    assert_eq!((number(&answer, "domains"), number(&answer, "rest")), (2.0, 112.0));
}

#[test]
fn pools_grow_in_chunks_and_release_them() {
    Machine::new("pools", "A10").prints("pools");
}

#[test]
fn green_context_is_limited_to_its_part() {
    Machine::new("green", "A10").prints("green");
}

#[test]
fn array_size_is_that_of_its_tiles() {
    let answer = Machine::new("arrays", "A10").prints("arrays");
    assert_eq!(number(&answer, "flat"), 65536.0);
    assert_eq!(number(&answer, "plane"), 4.5 * MIB);
    // 8 MiB, 2, 1/2, ..., all of it in multiples of 2 MiB.
    assert_eq!(number(&answer, "chain"), 12.0 * MIB);
}

#[test]
fn nvml_reports_the_same_gpus() {
    // The GPUs are fastest first on the bus, so CUDA and NVML number them alike.
    let answer = Machine::new("nvml", "H100,A10,T4").prints("nvml 512M");
    assert_eq!(number(&answer, "grown"), 512.0 * MIB);
    assert!(number(&answer, "own") > 512.0 * MIB, "{answer}");
}

#[test]
fn threads_share_a_context() {
    let machine = Machine::new("threads", "A10");
    assert_eq!(number(&machine.prints("threads 8 10"), "threads"), 32.0);
    // A thread's default stream ends with it; otherwise the machine would run out of streams.
    machine.prints("threads 64 2");
}

#[test]
fn racing_allocations_fill_memory_exactly() {
    let answer = Machine::new("race", "A10:8192").prints("race --procs 6 --rounds 100");
    assert_eq!(number(&answer, "wrong"), 0.0);
    assert_eq!(number(&answer, "unfreed"), 0.0);
}

#[test]
fn killed_process_leaves_no_memory() {
    let machine = Machine::new("killed", "A10:23028");
    let free = || number(&machine.prints("meminfo"), "free");
    let before = free();
    let mut holder = machine.start("hold 4G 60");
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(number(&line, "held"), 4096.0 * MIB);
    assert!(free() < before - 4096.0 * MIB);
    holder.kill().unwrap();
    holder.wait().unwrap();
    // Memory of a killed process is freed some time after its end.
    let deadline = Instant::now() + Duration::from_secs(20);
    while free() < before {
        assert!(Instant::now() < deadline, "the memory of a killed process is not freed");
    }
}

#[test]
fn injected_fault_fails_chosen_call() {
    let machine = Machine::new("fault", "A10").with("CGPU_SIM_FAULT", "cuMemGetInfo_v2:2:700");
    let output = machine.run("meminfo");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("expected 0, got 700"));
    let machine = Machine::new("no-fault", "A10").with("CGPU_SIM_FAULT", "cuMemGetInfo_v2:3:700");
    machine.prints("meminfo");
}

#[test]
fn injected_fault_fails_chosen_nvml_call() {
    let spec = "nvmlDeviceGetMemoryInfo*:1+:NVML_ERROR_GPU_IS_LOST,cuInit:9:999";
    let output =
        Machine::new("nvml-fault", "A10,T4,H100").with("CGPU_SIM_FAULT", spec).run("nvml 512M");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("15"), "{output:?}");
}

#[test]
fn invalid_fault_is_reported() {
    let output = Machine::new("bad-fault", "A10")
        .with("CGPU_SIM_FAULT", "cuMemAlloc_v2:often:2")
        .run("init");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("CGPU_SIM_FAULT") && errors.contains("expected NAME:WHEN:CODE"),
        "{errors}"
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"init\": 999"));
}

#[test]
fn journal_contains_every_call() {
    let machine = Machine::new("journal", "A10");
    let path = machine.file("journal");
    let machine = machine.with("CGPU_SIM_JOURNAL", path.to_str().unwrap());
    machine.prints("meminfo");
    let calls: Vec<String> =
        calls(&path).iter().map(|call| format!("{} {}", call.name, call.answer)).collect();
    let expected = [
        "cuInit 0",
        "cuDeviceGetCount 0",
        "cuDeviceGet 0",
        "cuDeviceGetName 0",
        "cuDeviceTotalMem_v2 0",
        "cuDevicePrimaryCtxRetain 0",
        "cuCtxSetCurrent 0",
        "cuMemGetInfo_v2 0",
        "cuMemGetInfo_v2 0",
        "cuDevicePrimaryCtxRelease_v2 0",
    ];
    assert_eq!(calls, expected);
}

fn calls(journal: &std::path::Path) -> Vec<Call> {
    let text = std::fs::read_to_string(journal).unwrap();
    let call = |line| if let Line::Call(call) = line { Some(call) } else { None };
    cgpu_sim::journal::lines(&text).filter_map(call).collect()
}

#[test]
fn journal_attributes_gpu_work_to_processes() {
    let machine = Machine::new("spans", "A10");
    let path = machine.file("journal");
    let machine = machine.with("CGPU_SIM_JOURNAL", path.to_str().unwrap());
    let mut other = machine.start("launch_loop spin_300us --count 200 --sync-every 8");
    machine.prints("launch_loop spin_200us --count 200 --sync-every 8");
    assert!(other.wait().unwrap().success());
    let launches =
        calls(&path).into_iter().filter(|call| call.name == "cuLaunchKernel" && call.answer == 0);
    let launches: Vec<Call> = launches.collect();
    assert!(
        launches.iter().all(|call| call.enqueued.len() == 1 && call.arguments["block_dim_x"] == 32),
        "{:?}",
        launches[0]
    );
    let trace = Trace::of_journal(&std::fs::read_to_string(&path).unwrap());
    let kernels = trace.spans().iter().filter(|span| span.kind == SpanKind::Kernel);
    let mut named = std::collections::BTreeMap::new();
    for span in kernels {
        named.entry(trace.span_name(span)).or_insert_with(Vec::new).push(span.to.0 - span.from.0);
    }
    assert_eq!(
        named.keys().copied().collect::<Vec<_>>(),
        ["spin_200us", "spin_300us"],
        "{named:?}"
    );
    // A kernel runs as one span, or as several where a slice ended.
    assert!(named["spin_200us"].iter().all(|&length| length <= 200_000));
    assert!(named["spin_200us"].contains(&200_000) && named["spin_300us"].contains(&300_000));
    let summary = trace.summary();
    assert_eq!(summary.lost_spans, 0);
    assert_eq!(summary.gpus[0].processes.len(), 2);
    assert!(summary.gpus[0].switches >= 2, "{summary:?}");
    let done: usize = summary.gpus[0].processes.iter().map(|process| process.kernels).sum();
    assert_eq!((done, launches.len()), (400, 400));
}

#[test]
fn invalid_settings_are_reported() {
    let output = Machine::new("settings", "B17").run("init");
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"init\": 100"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("CGPU_SIM_GPUS"));
}
