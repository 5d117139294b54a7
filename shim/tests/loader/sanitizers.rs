//! Programs built with sanitizers, which replace large parts of the C library.

use cgpu_e2e::skip;

use crate::harness::Harness;

fn run_with(sanitizer: &str, variable: Option<(&str, &str)>) {
    let harness = Harness::get();
    let flag = format!("-fsanitize={sanitizer}");
    for program in ["handles", "hooked", "copies"] {
        let name = format!("{program}-{sanitizer}");
        if !harness.compile(program, &name, &[&flag]) {
            return skip("sanitizers", sanitizer, &format!("the C compiler has no {flag}"));
        }
        let stub = harness.file("stub/libcuda.so.1").display().to_string();
        let arguments: &[&str] = if program == "copies" { &[&stub] } else { &[] };
        let mut run = harness.shimmed();
        if let Some((name, value)) = variable {
            run = run.variable(name, value);
        }
        let lines = run.lines(&name, arguments);
        // A sanitizer replaces functions of the C library; ours must stay ours.
        let ours = |lines: &[String]| {
            lines.iter().filter(|line| line.contains("libcgpu.so")).cloned().collect::<Vec<_>>()
        };
        assert_eq!(ours(&lines), ours(&harness.shimmed().lines(program, arguments)), "{name}");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut run = harness.shimmed().variable("CGPU_DIR", &folder.path().display().to_string());
    if let Some((name, value)) = variable {
        run = run.variable(name, value);
    }
    let name = format!("threads-{sanitizer}");
    assert!(harness.compile("threads", &name, &[&flag, "-pthread"]), "the others compile");
    let run = run.variable("ALIYUN_COM_GPU_MEM_CONTAINER", "6");
    assert_eq!(run.lines(&name, &[]), ["used 33554432", "used 0"], "{name}, with a limit");
}

#[test]
fn address() {
    // gcc's runtime wants to be the first library, but the preload is.
    run_with("address", Some(("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0")));
}

#[test]
fn thread() {
    // It knows the order only of code that it has compiled; other modules must be ignored.
    run_with("thread", Some(("TSAN_OPTIONS", "ignore_noninstrumented_modules=1")));
}

#[test]
fn undefined() {
    run_with("undefined", None);
}
