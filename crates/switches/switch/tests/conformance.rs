//! The fake switch keeps the contract.

use model::{Nanos, Slot, Tuple, UplinkId};
use switch::conformance::{Bed, run};
use switch::{FakeConfig, FakeSwitch, PortKind, PortSpec, Switch};

struct Fake {
    switch: FakeSwitch,
    now: Nanos,
}

impl Bed for Fake {
    fn switch(&mut self) -> &mut dyn Switch {
        &mut self.switch
    }

    fn start_instance(&mut self, slot: Slot) -> PortSpec {
        PortSpec::new(PortKind::Memif, format!("{slot}.sock"))
    }

    fn kill_instance(&mut self, slot: Slot) {
        self.switch.close_port(slot);
    }

    fn offer(&mut self, packets: &[Tuple]) {
        for tuple in packets {
            self.switch.offer(UplinkId(0), tuple);
        }
    }

    fn take(&mut self, slot: Slot) -> Vec<Tuple> {
        self.switch.take(slot, usize::MAX)
    }

    fn give_back(&mut self, slot: Slot, packets: &[Tuple]) {
        self.switch.give_back(slot, packets);
    }

    fn received(&mut self) -> Vec<Tuple> {
        self.switch.take_sent()
    }

    fn wait(&mut self) -> Nanos {
        self.now = self.now + Nanos::from_millis(1);
        self.switch.advance(self.now, |_| true);
        self.now
    }
}

#[test]
fn the_fake_switch_conforms() {
    run(|| Fake {
        switch: FakeSwitch::new(FakeConfig::default()),
        now: Nanos::ZERO,
    });
}
