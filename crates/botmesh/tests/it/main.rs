//! The runtime over a mock channel, journals in memory that fail on demand, and a clock that the test owns.

mod background;
mod cases;
mod channels;
mod chaos;
mod dropped;
mod flows;
mod journals;
mod media;
mod order;
mod outages;
mod owners;
mod routes;
mod sends;
mod settings;
mod store;
mod support;
