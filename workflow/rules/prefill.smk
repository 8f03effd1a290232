rule prefill:
    input:
        unpack(FLOW.inputs("prefill")),
    output:
        f"{RESULTS}/prefill/{{study}}/{{model}}/{{group}}.json",
    log:
        f"logs/{RUN}/prefill/{{study}}/{{model}}/{{group}}.log",
    wildcard_constraints:
        study="needle|passkey",
    priority: 0
    conda:
        "../../environment.yml"
    threads: FLOW.threads
    resources:
        mem_mb=FLOW.memory("prefill"),
        gpu=FLOW.gpus(),
    params:
        spec=FLOW.specs("prefill"),
        code=FLOW.codes("prefill"),
        named=FLOW.named_inputs("prefill"),
    shell:
        "kvatlas cell --spec {params.spec:q} --code {params.code} --threads {threads} --input {params.named:q} --output {output} > {log} 2>&1"
