"""What is known of the model types of each family; `vramplan.catalog.config_classes` finds them."""
