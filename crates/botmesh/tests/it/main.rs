//! The runtime over a mock channel, journals in memory that fail on demand, and a clock that the test owns.

mod background;
mod cases;
mod channels;
mod chaos;
mod desk;
mod dropped;
mod echoes;
mod flows;
mod guarantees;
mod journals;
mod keys;
mod leases;
mod long_texts;
mod media;
mod notices;
mod numbers;
mod operating;
mod order;
mod outages;
mod owners;
mod queues;
mod routes;
mod scopes;
mod sends;
mod settings;
mod support;
