# Install rules: added with the package configuration.
