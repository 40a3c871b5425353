//! What the suites run against.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use botmesh_core::coordinator::Coordinator;
use botmesh_core::error::{StoreError, StoreErrorKind};
use botmesh_core::kv::{Durable, DurableKv};
use botmesh_core::store::Store;
use serde::{Deserialize, Serialize};

/// Why a backend could not be opened.
pub type OpenError = Box<dyn Error + Send + Sync>;

/// A backend under test.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Its name, as given on the command line.
    fn name(&self) -> &str;

    /// What it claims. The suites hold it to it, also where it claims little.
    fn claims(&self) -> Claims;

    /// Opens the data at `place`: an empty one when the place is opened for the first time, and the same data again when
    /// it was opened before, as the next process would find it.
    ///
    /// # Errors
    /// It cannot be opened. A backend that is not shared must refuse a place that is still open.
    async fn open(&self, place: &Place) -> Result<Opened, OpenError>;

    /// Its version, for the certificate. Default: not told.
    fn version(&self) -> Option<&str> {
        None
    }

    /// Whether it runs when no backend is named. Default: `true`; a backend whose server is not named anywhere says
    /// `false`.
    fn is_offered(&self) -> bool {
        true
    }

    /// So many replicas that share turns at `place`, each with a session of its own; `None` if it gives no turns. Default:
    /// `None`.
    ///
    /// # Errors
    /// They cannot be started.
    async fn replicas(&self, place: &Place, count: usize) -> Result<Option<Vec<Replica>>, OpenError> {
        let _ = (place, count);
        Ok(None)
    }

    /// Whether it can run here and now.
    ///
    /// # Errors
    /// The server cannot be found; the text says how to provide it.
    async fn available(&self) -> Result<(), String> {
        Ok(())
    }
}

/// What a backend claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claims {
    /// What acknowledged writes survive. Default: [`Durable::Process`], that is, nothing.
    pub survives: Durable,
    /// Who may use the data at the same time. Default: [`Sharing::Process`].
    pub sharing: Sharing,
}

impl Claims {
    /// The smallest claims: nothing outlives the process, nothing is shared with another.
    pub const NONE: Self = Self { survives: Durable::Process, sharing: Sharing::Process };

    /// With what acknowledged writes survive.
    #[must_use]
    pub const fn surviving(mut self, survives: Durable) -> Self {
        self.survives = survives;
        self
    }

    /// With who may use the data at the same time.
    #[must_use]
    pub const fn shared_by(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// Whether acknowledged writes are there when the data is opened again.
    pub fn survives_reopen(self) -> bool {
        self.survives >= Durable::ProcessCrash
    }
}

/// Who may use a backend's data at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// One opening, in one process.
    Process,
    /// The processes of one host.
    Host,
    /// Every process that reaches the server.
    Network,
}

/// Where a case keeps its data. No two cases share one.
#[derive(Debug)]
pub struct Place {
    id: String,
    folder: PathBuf,
    /// Another process's: it stays.
    borrowed: bool,
}

impl Place {
    pub(crate) fn new(id: String, root: &Path) -> Self {
        Self { folder: root.join(&id), id, borrowed: false }
    }

    /// The place of a case in another process.
    #[cfg(feature = "cli")]
    pub(crate) fn existing(id: String, folder: &Path) -> Self {
        Self { id, folder: folder.to_owned(), borrowed: true }
    }

    /// A name that no other case and no other run has, of letters, digits, `-` and `_`. Use it as a scope or prefix on a
    /// server.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// An existing folder of its own, removed after the case.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn folder(&self) -> Result<&Path, OpenError> {
        std::fs::create_dir_all(&self.folder)
            .map_err(|error| format!("the folder {} cannot be created: {error}", self.folder.display()))?;
        Ok(&self.folder)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.borrowed {
            return;
        }
        // What cannot be removed now is removed with the folder of the whole run.
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// One of several replicas that share turns.
pub struct Replica {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) crash: Box<dyn Fn() + Send + Sync>,
}

impl Replica {
    /// A replica that `crash` kills: nobody is told, and others go on after its lease at the latest.
    pub fn new(coordinator: Arc<dyn Coordinator>, crash: impl Fn() + Send + Sync + 'static) -> Self {
        Self { coordinator, crash: Box::new(crash) }
    }
}

/// Open data: a key-value store for journals, a store, or both.
#[derive(Clone)]
pub struct Opened {
    pub(crate) kv: Option<Arc<dyn DurableKv>>,
    pub(crate) store: Option<Arc<dyn Store>>,
}

impl Opened {
    /// Of a backend that holds journals. The suites for stores are shown as not claimed.
    pub fn kv(kv: Arc<dyn DurableKv>) -> Self {
        Self { kv: Some(kv), store: None }
    }

    /// Of a backend that is a store. The suites for journals are shown as not claimed.
    pub fn store(store: Arc<dyn Store>) -> Self {
        Self { kv: None, store: Some(store) }
    }

    /// Of a backend that is a store too.
    #[must_use]
    pub fn with_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Closes both. They may share what they close.
    pub(crate) async fn close(self) -> Result<(), StoreError> {
        if let Some(kv) = self.kv {
            kv.close().await?;
        }
        match self.store {
            Some(store) => match store.close().await {
                Err(error) if error.kind() != StoreErrorKind::Misuse => Err(error),
                _ => Ok(()),
            },
            None => Ok(()),
        }
    }
}
