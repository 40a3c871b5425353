use super::*;

const METADATA: &str = r#"{
    "workspace_root": "/w", "target_directory": "/w/target",
    "packages": [
        {"name": "botmesh", "publish": null, "targets": [
            {"name": "botmesh", "kind": ["lib"]}, {"name": "spine", "kind": ["bench"]}]},
        {"name": "xtask", "publish": [], "targets": [{"name": "xtask", "kind": ["bin"]}]}
    ]
}"#;

#[test]
fn reads_packages_benches_and_who_is_published() {
    let workspace = Workspace::parse(METADATA).unwrap();
    assert_eq!(workspace.root, Path::new("/w"));
    assert_eq!(workspace.target, Path::new("/w/target"));
    let read: Vec<_> =
        workspace.packages.iter().map(|p| (p.name.as_str(), p.publishable, p.benches.len())).collect();
    assert_eq!(read, [("botmesh", true, 1), ("xtask", false, 0)]);
}

#[test]
fn an_unknown_shape_is_refused() {
    assert!(Workspace::parse("{}").is_none());
    assert!(
        Workspace::parse(r#"{"workspace_root": "/w", "target_directory": "/t", "packages": [{}]}"#).is_none()
    );
}
