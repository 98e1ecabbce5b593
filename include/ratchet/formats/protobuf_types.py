"""Types of fields, by the numbers that Protobuf's descriptors have for them."""

DOUBLE, FLOAT, INT64, UINT64, INT32, FIXED64, FIXED32, BOOL, STRING, GROUPED, MESSAGES, BINARY, UINT32, ENUM = range(
    1, 15
)
SFIXED32, SFIXED64, SINT32, SINT64 = range(15, 19)
