//! Compares the parser with an independent one (etherparse) on golden, generated, mutated and captured
//! frames, and the fragment tracker with a reference model.

#[cfg(test)]
mod captures;
#[cfg(test)]
mod generated;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod mutations;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tracker;
