"""What schemathesis must know of inco's API beyond its description."""

import schemathesis
from hypothesis import strategies as st

addresses = st.ip_addresses(v=4).map(str)
ports = st.integers(0, 65535)
flows = st.builds(
    "{} {}:{} > {}:{}".format, st.sampled_from(["tcp", "udp", "sctp"]), addresses, ports, addresses, ports
)
schemathesis.openapi.format("ip", st.ip_addresses().map(str))
schemathesis.openapi.format("flow", flows)


@schemathesis.hook
def before_load_schema(context, schema):
    """`stop` would end the inco under test; an answer that follows never ends."""
    action = schema["components"]["schemas"]["Action"]
    action["oneOf"] = [one for one in action["oneOf"] if one["properties"]["action"]["enum"] != ["stop"]]
    for path in schema["paths"].values():
        for operation in path.values():
            if isinstance(operation, dict) and "parameters" in operation:
                operation["parameters"] = [p for p in operation["parameters"] if p["name"] != "follow"]
    del schema["paths"]["/v1/stream"]
    # A capture lasts as long as it is told to.
    del schema["paths"]["/v1/capture"]
    # A format that is ours is heeded only where the type is one.
    for one in action["oneOf"]:
        flow = one["properties"].get("flow", {})
        if isinstance(flow.get("type"), list):
            one["properties"]["flow"] = {"oneOf": [{"type": "string", "format": "flow"}, {"type": "null"}]}
