"""What sessions cost: one engine core and many gateways, one gateway and many engine cores."""
