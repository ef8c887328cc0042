//! The parser against an independent one (etherparse), on golden frames, generated ones, mutated ones and captures;
//! and the fragment tracker against a plain model.

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
