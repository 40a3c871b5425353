//! What cargo says about the workspace: where it is, its packages and their targets.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::shell::Invocation;

/// The crate that starts servers for tests.
const SERVERS: &str = "botmesh-test-servers";

pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
}

pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) publishable: bool,
    /// Its tests start real servers.
    pub(crate) tests_with_servers: bool,
    /// Those of them that do are behind its feature `redis`.
    pub(crate) servers_behind_feature: bool,
    pub(crate) benches: Vec<String>,
}

impl Workspace {
    pub(crate) fn load() -> Result<Self, String> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let json = Invocation::cargo(["metadata", "--format-version", "1", "--no-deps"]).output(here)?;
        Self::parse(&json).ok_or_else(|| "cargo metadata has a shape that xtask does not know".into())
    }

    fn parse(json: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(json).ok()?;
        Some(Self {
            root: value.get("workspace_root")?.as_str()?.into(),
            target: value.get("target_directory")?.as_str()?.into(),
            packages: value.get("packages")?.as_array()?.iter().map(package).collect::<Option<_>>()?,
        })
    }
}

fn package(value: &Value) -> Option<Package> {
    let is_bench =
        |target: &&Value| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == "bench"));
    let targets = value.get("targets")?.as_array()?;
    // The scripts start servers themselves, but not in their tests.
    let starts_servers = |dependency: &Value| dependency["name"] == SERVERS && value["name"] != "xtask";
    let tests_with_servers =
        value.get("name")? == SERVERS || value.get("dependencies")?.as_array()?.iter().any(starts_servers);
    Some(Package {
        name: value.get("name")?.as_str()?.into(),
        publishable: value.get("publish")?.as_array().is_none_or(|registries| !registries.is_empty()),
        tests_with_servers,
        servers_behind_feature: tests_with_servers && value["features"].get("redis").is_some(),
        benches: targets.iter().filter(is_bench).filter_map(|t| Some(t["name"].as_str()?.into())).collect(),
    })
}

#[cfg(test)]
mod tests;
