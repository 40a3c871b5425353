use super::*;
use crate::workspace::Package;

fn workspace() -> Workspace {
    let package = |name: &str, publishable, tests_with_servers| Package {
        name: name.into(),
        publishable,
        tests_with_servers,
        servers_behind_feature: name == "botmesh-examples",
        benches: Vec::new(),
    };
    let packages = vec![
        package("botmesh", true, false),
        package("botmesh-redis-store", true, true),
        package("botmesh-examples", false, true),
        package("xtask", false, false),
    ];
    Workspace { root: ".".into(), target: "target".into(), packages }
}

fn job(workspace: &Workspace) -> Job<'_> {
    Job { workspace, without_redis: false }
}

fn args(only: &[&str], skip: &[&str]) -> Args {
    let list = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
    Args { only: list(only), skip: list(skip), allow_missing: Vec::new(), list: false }
}

const fn step(name: &'static str, run: fn(&Job<'_>) -> Result<(), String>) -> Step {
    Step { name, command: fmt, run }
}

const THREE: &[Step] = &[step("a", |_| Ok(())), step("b", |_| Err("broken".into())), step("c", |_| Ok(()))];

fn outcomes(rows: &[Row]) -> String {
    let letter = |row: &Row| match row.outcome {
        Outcome::Passed(_) => 'p',
        Outcome::Failed(_) => 'F',
        Outcome::NotRun => '-',
    };
    rows.iter().map(letter).collect()
}

#[test]
fn only_and_skip_choose_the_steps() {
    for (only, skip, name, expected) in [
        (&[][..], &[][..], "fmt", true),
        (&["fmt"], &[], "fmt", true),
        (&["fmt"], &[], "tidy", false),
        (&[], &["fmt"], "fmt", false),
        (&[], &["fmt"], "tidy", true),
        (&["fmt"], &["fmt"], "fmt", false),
    ] {
        assert_eq!(args(only, skip).chooses(name), expected, "only {only:?} skip {skip:?} {name}");
    }
}

#[test]
fn the_first_failure_stops_the_run() {
    assert_eq!(outcomes(&run_steps(&job(&workspace()), THREE, &[true; 3])), "pF-");
}

#[test]
fn a_step_that_was_not_chosen_is_not_run() {
    assert_eq!(outcomes(&run_steps(&job(&workspace()), THREE, &[true, false, true])), "p-p");
}

#[test]
fn the_last_line_counts_steps() {
    let last = |chosen: &[bool]| {
        let text = Report { rows: run_steps(&job(&workspace()), THREE, chosen) }.to_string();
        text.lines().last().unwrap().to_owned()
    };
    assert_eq!(last(&[true, true, true]), "1 passed, 1 failed, 1 skipped");
    assert_eq!(last(&[true, false, true]), "2 passed, 0 failed, 1 skipped");

    let rows = run_steps(&job(&workspace()), &THREE[..1], &[true]);
    assert!(Report { rows }.to_string().ends_with("\n1 passed, 0 failed\n"));
}

#[test]
fn the_report_says_how_to_rerun_what_failed() {
    let text = Report { rows: run_steps(&job(&workspace()), THREE, &[true; 3]) }.to_string();
    assert!(text.contains("cargo xtask test --only b"), "{text}");
    assert!(text.contains("c            not run"), "{text}");
}

#[test]
fn only_what_is_published_is_packaged() {
    let shown = package(&job(&workspace())).to_string();
    assert_eq!(
        shown,
        "cargo package --workspace --no-verify --allow-dirty --exclude botmesh-examples --exclude xtask"
    );
}

#[test]
fn without_redis_what_needs_it_is_shown_as_not_run() {
    let workspace = workspace();
    let without = Job { workspace: &workspace, without_redis: true };
    assert!(unit(&without).to_string().ends_with(" --tests --exclude botmesh-redis-store"));
    assert!(suites(&without).to_string().ends_with(" --allow-missing redis"));
    let text = Report { rows: run_steps(&without, &[step("unit", |_| Ok(()))], &[true]) }.to_string();
    assert!(text.contains("unit botmesh-redis-store not run"), "{text}");
    assert!(text.contains("unit botmesh-examples/redis not run"), "{text}");
    assert!(text.ends_with("\n1 passed, 0 failed, 2 skipped\n"), "{text}");

    let both = [step(CHAOS, |_| Err("it has no server".into())), step("b", |_| Ok(()))];
    assert_eq!(outcomes(&run_steps(&without, &both, &[true; 2])), "-p");

    let with = job(&workspace);
    assert!(unit(&with).to_string().ends_with(" --tests --features botmesh-examples/redis"));
    assert!(!suites(&with).to_string().contains("allow-missing"));
    let text = Report { rows: run_steps(&with, &[step("unit", |_| Ok(()))], &[true]) }.to_string();
    assert!(text.ends_with("\n1 passed, 0 failed\n"), "{text}");
}
